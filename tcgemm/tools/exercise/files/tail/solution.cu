// Exercise 2: an off-by-one in a tail.
// A solution.
#include "host/gemm.cuh"

constexpr int BLOCK = 16;

__device__ inline const __half* at(const tcgemm::Matrix& matrix, int64_t row, int64_t col) {
  return static_cast<const __half*>(matrix.data) + row * matrix.row_stride + col * matrix.col_stride;
}

__device__ inline void store(const tcgemm::Matrix& c, int64_t row, int64_t col, float value) {
  static_cast<__half*>(c.data)[row * c.row_stride + col * c.col_stride] = __float2half(value);
}

__global__ void tail(tcgemm::Gemm gemm) {
  __shared__ __half a[BLOCK][BLOCK];
  __shared__ __half b[BLOCK][BLOCK];
  const int x = threadIdx.x, y = threadIdx.y;
  const int64_t row = blockIdx.y * BLOCK + y, col = blockIdx.x * BLOCK + x;
  const int64_t M = gemm.c.rows, N = gemm.c.cols, K = gemm.a.cols;
  float sum = 0.0f;
  for (int64_t k = 0; k < K; k += BLOCK) {
    a[y][x] = row < M && k + x < K ? *at(gemm.a, row, k + x) : __half(0.0f);
    b[y][x] = k + y < K && col < N ? *at(gemm.b, k + y, col) : __half(0.0f);
    __syncthreads();
    for (int i = 0; i < BLOCK; ++i) sum += __half2float(a[y][i]) * __half2float(b[i][x]);
    __syncthreads();
  }
  if (row < M && col < N) store(gemm.c, row, col, sum);
}

int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {
  const dim3 grid((gemm.c.cols + BLOCK - 1) / BLOCK, (gemm.c.rows + BLOCK - 1) / BLOCK);
  return tcgemm::launch(tail, grid, dim3(BLOCK, BLOCK), 0, stream, gemm);
}
