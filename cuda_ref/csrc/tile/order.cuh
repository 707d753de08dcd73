// In which order the blocks of a one-dimensional grid visit the tiles of C.
//
// The grid is one-dimensional because gridDim.y and gridDim.z end at 65,535.
#pragma once

#include "host/gemm.cuh"

namespace tcgemm {

__host__ __device__ constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A tile's place in the grid of tiles.
struct Tile {
  int m, n;
};

// Row after row: neighbours in time share a row of A and walk through all of B.
__device__ inline Tile row_major_tile(int index, int tiles_n) {
  return {index / tiles_n, index % tiles_n};
}

// Grouped ordering: down a group of GROUP_M tile rows, then one tile column to the right, so that
// the blocks that run together read few rows of A and few columns of B, and find them in L2.
// The last group is as high as the rows that are left, so every tile is visited exactly once:
// with 2 rows, 5 columns and GROUP_M 8, index 3 is tile (1, 1). Kernels for several GPUs, where groups
// of all ranks run together, give a lower group_m. group_m * tiles_n is below 2^31: refuse_tiles in
// planning/refusals.py, or TMA, whose coordinates end there.
template <int GROUP_M>
__device__ inline Tile grouped_tile(int index, int tiles_m, int tiles_n, int group_m = GROUP_M) {
  const int group = index / (group_m * tiles_n);
  const int within = index % (group_m * tiles_n);
  const int first = group * group_m;
  const int height = tiles_m - first < group_m ? tiles_m - first : group_m;
  return {first + within % height, within / height};
}

// Starts `kernel` with one block per tile of C. The tiles are counted in 64 bits; a grid of 2^31
// tiles or more is refused.
template <typename... Params, typename... Args>
int launch_tiles(void (*kernel)(Params...), int64_t tiles_m, int64_t tiles_n, dim3 block,
                 size_t shared_bytes, cudaStream_t stream, Args... args) {
  if (tiles_m * tiles_n > INT32_MAX) return cudaErrorInvalidConfiguration;
  const dim3 grid(static_cast<unsigned>(tiles_m * tiles_n));
  return launch(kernel, grid, block, shared_bytes, stream, args...);
}

}  // namespace tcgemm
