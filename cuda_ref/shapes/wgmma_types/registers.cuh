// A of float32 in the registers that wgmma takes: a warp's 16 rows of a stage, four numbers of a lane
// for each 8 along K.
//
// Shared memory has A along K, or across it as it lies in memory, which wgmma's descriptors know of
// 16-bit types alone. Threads can read it either way.
#pragma once

#include "ptx/sm90.cuh"
#include "wgmma_types/tf32x3.cuh"

namespace tcgemm::sm90 {

constexpr int ACROSS_ROWS = 32;  // of A in a row of 128 bytes, where they are neighbours

// x[4 i ..]: rows l / 4, and 8 below, of column l % 4 of the i-th 8 along K; then of column l % 4 + 4
// (l: the lane). `tile`: the first of the warpgroup's 64 rows. 16-byte unit u of a row of 128 bytes, the
// r-th, is at u ^ r % 8.
template <bool ACROSS>
__device__ __forceinline__ void load_rows(uint32_t tile, uint32_t (&x)[16]) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
  const uint32_t row = lane / 4, column = lane % 4;
  if constexpr (!ACROSS) {
    // The 32 lanes' words lie in 32 banks.
    const uint32_t at = tile + (warp * 16 + row) * 128 + row * 16 + column * 4;
#pragma unroll
    for (uint32_t i = 0; i < 16; ++i) x[i] = ld_shared_u32((at ^ i / 2 * 16) + i % 2 * 1024);
  } else {
    // A unit is four rows of one column. Columns c and c + 1 have theirs in the same banks, but not c
    // and c + 5: so of lanes of odd columns the second column comes first.
    const uint32_t odd = lane % 2, unit = warp % 2 * 4 + row / 4;
    const uint32_t at = tile + warp / 2 * ACROSS_ROWS * 128 + row % 4 * 4;
    const auto address = [&](uint32_t c) { return at + c * 128 + (unit ^ c) * 16; };
    const uint32_t one = address(column + 4 * odd), other = address(column + 4 * (1 - odd));
#pragma unroll
    for (uint32_t i = 0; i < 16; i += 4) {
#pragma unroll
      for (uint32_t j = 0; j < 2; ++j) {
        const uint32_t a = ld_shared_u32((one ^ j * 32) + i * 256);
        const uint32_t b = ld_shared_u32((other ^ j * 32) + i * 256);
        x[i + j] = odd ? b : a;
        x[i + j + 2] = odd ? a : b;
      }
    }
  }
}

// The same as hi and lo.
struct SplitA {
  uint32_t hi[16], lo[16];

  template <bool ACROSS>
  __device__ __forceinline__ void load(uint32_t tile) {
    load_rows<ACROSS>(tile, hi);
    split<CUT_OFF>(hi, lo);
  }
};

}  // namespace tcgemm::sm90
