// Stores rows of 16-bit elements that begin anywhere, from units of 16 bytes in shared memory.
#pragma once

#include "tile/unaligned.cuh"

namespace tcgemm::sm90 {

// 16 rows of IN_A_ROW units by a warp. `to`: where the first row begins in memory; rows are
// `row_stride` elements apart, and `rows` and `columns` of them exist. unit_of(row, unit) reads one.
//
// A row begins `before` elements into an aligned unit of memory, and so lies across one unit more
// than it has. Those that it fills are stored first, then its ends, `left` and `right`. Without
// `right` somebody else has the last ELEMENTS columns too, and stores what begins with them.
template <int IN_A_ROW, typename Read>
__device__ __forceinline__ void store_odd_rows(uint16_t* to, int64_t row_stride, int rows,
                                               int columns, bool left, bool right,
                                               const Read& unit_of) {
  constexpr int ELEMENTS = UnalignedVector::ELEMENTS;
  const int lane = threadIdx.x % 32;
  const auto of_memory = [&](int row, int unit, int before) {
    const int last = IN_A_ROW - 1;
    UnalignedVector across;
    across.shift = before > 0 ? ELEMENTS - before : 0;
    across.set(0, unit_of(row, min(max(unit - (before > 0), 0), last)));
    across.set(1, unit_of(row, min(unit, last)));
    return across.vector();
  };
#pragma unroll 2
  for (int i = lane; i < 16 * IN_A_ROW; i += 32) {
    const int row = i / IN_A_ROW, unit = i % IN_A_ROW;
    uint16_t* const line = to + row * row_stride;
    const int before = UnalignedVector::elements_before(line);
    const int begin = unit * ELEMENTS - before;
    if (row < rows && begin >= 0 && begin + ELEMENTS <= columns - !right)
      *reinterpret_cast<uint4*>(line + begin) = of_memory(row, unit, before);
  }
  if (!left && !right) return;
  // Lanes 0 to 15 have the left ends, the others the right ones.
  const bool is_left = lane < 16;
  const int row = lane % 16;
  uint16_t* const line = to + row * row_stride;
  const int before = UnalignedVector::elements_before(line);
  const int unit = is_left ? 0 : (before + columns) / ELEMENTS;
  const int end = before + columns - unit * ELEMENTS;
  const bool ends = is_left ? left && before > 0 : right && end > 0 && (unit > 0 || before == 0);
  if (row < rows && columns > 0 && ends)
    store_only(line + unit * ELEMENTS - before, of_memory(row, unit, before),
               unit == 0 ? before : 0, end);
}

}  // namespace tcgemm::sm90
