// The tiles of skinny.cu: their shapes, their wgmma, and the choice among them.
#pragma once

#include <algorithm>

#include "cluster_reduce.cuh"
#include "wgmma_narrow.cuh"

namespace tcgemm::sm90 {

constexpr int BLOCK_K = 64;
constexpr int MOST_SPLITS = 8;

// A tile of C^T: BLOCK_N columns of B by TILE_M rows of A.
template <int TILE_M, int BLOCK_N>
struct Shape {
  static constexpr int CONSUMERS = BLOCK_N / 64 * 128;  // threads; the producer warp follows them
  static constexpr int THREADS = CONSUMERS + 32;
  static constexpr uint32_t B_BYTES = BLOCK_N * BLOCK_K * 2;
  static constexpr uint32_t STAGE_BYTES = B_BYTES + TILE_M * BLOCK_K * 2;
  // In either orientation.
  static constexpr uint32_t SUM_BYTES = 4 * std::max(TILE_M * pitch_of(BLOCK_N),
                                                     BLOCK_N * pitch_of(TILE_M));
  // What the others of a cluster send: each part of the rows is rounded up to whole rows.
  static constexpr uint32_t PART_BYTES = 4 * std::max((TILE_M + MOST_SPLITS) * pitch_of(BLOCK_N),
                                                      (BLOCK_N + MOST_SPLITS) * pitch_of(TILE_M));
  // Of a ring in whose place the sums lie at the end.
  static constexpr uint32_t LEAST_STAGES =
      std::max<uint32_t>(2, (SUM_BYTES + STAGE_BYTES - 1) / STAGE_BYTES);
};

// D[64 columns of B, TILE_M rows of A] += ..., 16 along K.
template <typename In, Major A, Major B, int TILE_M>
__device__ __forceinline__ void multiply(float (&d)[TILE_M / 2], uint64_t b, uint64_t a,
                                         bool accumulate) {
  if constexpr (TILE_M == 16) {
    wgmma_m64n16k16<In, B, A>(d, b, a, accumulate);
  } else if constexpr (TILE_M == 64) {
    wgmma_m64n64k16<In, B, A>(d, b, a, accumulate);
  } else {
    wgmma_m64n128k16<In, B, A>(d, b, a, accumulate);
  }
}

// Calls body(major of A, TILE_M, BLOCK_N as integral_constant). An A that is stored transposed
// comes in panels of 64 rows.
template <typename Body>
int with_tile(Major a, int m, int block_n, Body body) {
  constexpr std::integral_constant<Major, Major::K> k;
  constexpr std::integral_constant<Major, Major::MN> mn;
  constexpr std::integral_constant<int, 16> c16;
  constexpr std::integral_constant<int, 64> c64;
  constexpr std::integral_constant<int, 128> c128;
  if (a == Major::MN && block_n == 64)
    return m <= 64 ? body(mn, c64, c64) : body(mn, c128, c64);
  if (a == Major::MN) return m <= 64 ? body(mn, c64, c128) : body(mn, c128, c128);
  if (block_n == 64)
    return m <= 16 ? body(k, c16, c64) : m <= 64 ? body(k, c64, c64) : body(k, c128, c64);
  return m <= 16 ? body(k, c16, c128) : m <= 64 ? body(k, c64, c128) : body(k, c128, c128);
}

}  // namespace tcgemm::sm90
