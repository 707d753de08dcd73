// Fault: the sum starts from whatever its register holds.
#include "tile.cuh"

using namespace faults;

__global__ void unset_accumulator(tcgemm::Gemm gemm) {
  __shared__ __half a[BLOCK][BLOCK];
  __shared__ __half b[BLOCK][BLOCK];
  const int x = threadIdx.x, y = threadIdx.y;
  const int64_t row = blockIdx.y * BLOCK + y, col = blockIdx.x * BLOCK + x, K = gemm.a.cols;
  float sum;
  for (int64_t k = 0; k < K; k += BLOCK) {
    a[y][x] = row < gemm.c.rows && k + x < K ? element(gemm.a, row, k + x) : __half(0.0f);
    b[y][x] = col < gemm.c.cols && k + y < K ? element(gemm.b, k + y, col) : __half(0.0f);
    __syncthreads();
    for (int i = 0; i < BLOCK; ++i) sum += float(a[y][i]) * float(b[i][x]);
    __syncthreads();
  }
  if (row < gemm.c.rows && col < gemm.c.cols) store(gemm.c, row, col, sum);
}

int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {
  return launch_tiles(unset_accumulator, gemm, stream);
}
