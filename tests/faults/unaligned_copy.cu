// Fault: 16-byte copies of rows that begin at any multiple of 2 bytes.
#include "ptx/cp_async.cuh"
#include "tile.cuh"

using namespace faults;

__global__ void unaligned_copy(tcgemm::Gemm gemm) {
  __shared__ alignas(16) __half a[BLOCK][BLOCK];
  const int x = threadIdx.x, y = threadIdx.y;
  const int64_t row = blockIdx.y * BLOCK + y, col = blockIdx.x * BLOCK + x, K = gemm.a.cols;
  float sum = 0.0f;
  for (int64_t k = 0; k + BLOCK <= K; k += BLOCK) {
    if (x < 2) {
      const __half* from = static_cast<const __half*>(gemm.a.data) + row * gemm.a.row_stride + k;
      tcgemm::cp_async_16(&a[y][8 * x], from + 8 * x);
    }
    tcgemm::cp_async_commit();
    tcgemm::cp_async_wait<0>();
    __syncthreads();
    for (int i = 0; i < BLOCK; ++i) sum += float(a[y][i]) * float(element(gemm.b, k + i, col));
    __syncthreads();
  }
  store(gemm.c, row, col, sum);
}

int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {
  return launch_tiles(unaligned_copy, gemm, stream);
}
