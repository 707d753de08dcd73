// The order in which tiles of C are visited.
#pragma once

namespace tcgemm {

struct Tile {
  int m, n;  // tile coordinates, not elements
};

// Grouped ordering: bands of GROUP_M tile rows, each band column by column. Tiles that run at the
// same time then form a near-square of C and share their rows of A and columns of B in the L2.
// The last band may hold fewer rows; every index below tiles_m * tiles_n gives its own tile.
template <int GROUP_M>
__device__ __forceinline__ Tile grouped_tile(int index, int tiles_m, int tiles_n) {
  const int band = index / (GROUP_M * tiles_n);
  const int within = index - band * GROUP_M * tiles_n;
  const int height = min(GROUP_M, tiles_m - band * GROUP_M);
  return {band * GROUP_M + within % height, within / height};
}

}  // namespace tcgemm
