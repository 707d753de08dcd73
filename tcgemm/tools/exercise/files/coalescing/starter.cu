// Exercise 7: loads that do not coalesce.
//
// A thread computes one element. C is right, but a load request of a warp asks for 8.5 sectors on
// average, where 1.5 would do. Which thread should have which element of the row-major C?
#include "host/gemm.cuh"

constexpr int BLOCK = 16;

__device__ inline const __half* at(const tcgemm::Matrix& matrix, int64_t row, int64_t col) {
  return static_cast<const __half*>(matrix.data) + row * matrix.row_stride + col * matrix.col_stride;
}

__device__ inline void store(const tcgemm::Matrix& c, int64_t row, int64_t col, float value) {
  static_cast<__half*>(c.data)[row * c.row_stride + col * c.col_stride] = __float2half(value);
}

__global__ void coalescing(tcgemm::Gemm gemm) {
  const int64_t row = blockIdx.y * BLOCK + threadIdx.x, col = blockIdx.x * BLOCK + threadIdx.y;
  if (row >= gemm.c.rows || col >= gemm.c.cols) return;
  float sum = 0.0f;
  for (int64_t k = 0; k < gemm.a.cols; ++k)
    sum += __half2float(*at(gemm.a, row, k)) * __half2float(*at(gemm.b, k, col));
  store(gemm.c, row, col, sum);
}

int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {
  const dim3 grid((gemm.c.cols + BLOCK - 1) / BLOCK, (gemm.c.rows + BLOCK - 1) / BLOCK);
  return tcgemm::launch(coalescing, grid, dim3(BLOCK, BLOCK), 0, stream, gemm);
}
