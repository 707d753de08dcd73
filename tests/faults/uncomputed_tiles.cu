// Fault: grouped ordering by the full height of a group, which returns where the last group is
// lower. With 64 x 64 tiles in groups of four, 128 x 320 leaves whole tiles uncomputed.
#include "tile.cuh"

using namespace faults;

constexpr int WIDE = 64;
constexpr int GROUP_N = 4;

__global__ void uncomputed_tiles(tcgemm::Gemm gemm) {
  const int64_t tiles_m = (gemm.c.rows + WIDE - 1) / WIDE, tiles_n = (gemm.c.cols + WIDE - 1) / WIDE;
  const int64_t group = blockIdx.x / (GROUP_N * tiles_m), within = blockIdx.x % (GROUP_N * tiles_m);
  const int64_t tile_n = group * GROUP_N + within % GROUP_N, tile_m = within / GROUP_N;
  if (tile_n >= tiles_n) return;
  for (int i = threadIdx.x; i < WIDE * WIDE; i += blockDim.x) {
    const int64_t row = tile_m * WIDE + i / WIDE, col = tile_n * WIDE + i % WIDE;
    if (row >= gemm.c.rows || col >= gemm.c.cols) continue;
    float sum = 0.0f;
    for (int64_t k = 0; k < gemm.a.cols; ++k)
      sum += float(element(gemm.a, row, k)) * float(element(gemm.b, k, col));
    store(gemm.c, row, col, sum);
  }
}

int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {
  const unsigned tiles_m = static_cast<unsigned>((gemm.c.rows + WIDE - 1) / WIDE);
  const unsigned tiles_n = static_cast<unsigned>((gemm.c.cols + WIDE - 1) / WIDE);
  return tcgemm::launch(uncomputed_tiles, dim3(tiles_m * tiles_n), dim3(128), 0, stream, gemm);
}
