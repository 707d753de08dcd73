// From accumulators in registers to C in global memory, whatever its strides.
#pragma once

#include "convert.cuh"
#include "gemm.cuh"

#include <type_traits>

namespace tcgemm {

// C as plain stores write it: element (m, n) is at data + m * row_stride + n * col_stride.
// With `pairs`, two neighbours in a row may be stored as one word.
struct PlainOutput {
  void* data;
  int64_t row_stride, col_stride;
  bool pairs;
};

inline PlainOutput plain_output(const Matrix& c, DType type) {
  const int64_t pair = type == DType::f32 ? 8 : 4;
  bool pairs = c.col_stride == 1 && c.row_stride % 2 == 0 && c.cols % 2 == 0 &&
               reinterpret_cast<uint64_t>(c.data) % pair == 0;
  return {c.data, c.row_stride, c.col_stride, pairs};
}

template <typename Out>
__device__ __forceinline__ uint32_t pack(float x, float y) {
  if constexpr (std::is_same_v<Out, __half>) {
    __half2 pair = __floats2half2_rn(x, y);
    return reinterpret_cast<uint32_t&>(pair);
  } else {
    __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    return reinterpret_cast<uint32_t&>(pair);
  }
}

// Stores a warp's 16 x (2 * REGISTERS) accumulators with C's corner at (m, n), clipped to M and N.
// Lane l holds rows l / 4 and 8 below; d[4 j + 0, 1] are columns 8 j + 2 (l % 4) and the next of
// the upper row, d[4 j + 2, 3] of the lower: as mma m16n8 and wgmma leave them.
template <typename Out, int REGISTERS>
__device__ __forceinline__ void store_rows(const PlainOutput& c, const float (&d)[REGISTERS], int m,
                                           int n, int M, int N) {
  const int lane = threadIdx.x % 32;
  const int row = m + lane / 4, col = n + lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t i = row + half * 8;
    if (i >= M) continue;
    Out* line = static_cast<Out*>(c.data) + i * c.row_stride;
#pragma unroll
    for (int j = 0; j < REGISTERS / 4; ++j) {
      const float x = d[4 * j + 2 * half], y = d[4 * j + 2 * half + 1];
      const int64_t k = col + 8 * j;
      if (c.pairs) {
        if (k < N) {
          if constexpr (std::is_same_v<Out, float>)
            *reinterpret_cast<float2*>(line + k) = make_float2(x, y);
          else
            *reinterpret_cast<uint32_t*>(line + k) = pack<Out>(x, y);
        }
      } else {
        if (k < N) line[k * c.col_stride] = from_float<Out>(x);
        if (k + 1 < N) line[(k + 1) * c.col_stride] = from_float<Out>(y);
      }
    }
  }
}

}  // namespace tcgemm
