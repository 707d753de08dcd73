// Exercise 3: bank conflicts to remove.
//
// 32 threads read a tile of 32 x 32 floats down its columns: lane x reads a[x][i]. A row is 128 bytes,
// once around the 32 banks, so all 32 lanes meet in one bank. C is right, and shared memory is read in
// 32 passes instead of one. Change the layout of the tile so that at most half of the conflicts are
// left (none is possible).
#include "host/gemm.cuh"

constexpr int BLOCK = 16;

__device__ inline const __half* at(const tcgemm::Matrix& matrix, int64_t row, int64_t col) {
  return static_cast<const __half*>(matrix.data) + row * matrix.row_stride + col * matrix.col_stride;
}

__device__ inline void store(const tcgemm::Matrix& c, int64_t row, int64_t col, float value) {
  static_cast<__half*>(c.data)[row * c.row_stride + col * c.col_stride] = __float2half(value);
}

constexpr int TILE = 32;
constexpr int PAD = 0;

// C = A B with A read from a tile in shared memory down its columns: thread x has row x.
__global__ void bank_conflicts(tcgemm::Gemm gemm) {
  __shared__ float a[TILE][TILE + PAD];
  const int x = threadIdx.x;
  const int64_t row = blockIdx.y * TILE + x, first = blockIdx.y * TILE, col = blockIdx.x;
  const int64_t M = gemm.c.rows, K = gemm.a.cols;
  float sum = 0.0f;
  for (int64_t k = 0; k < K; k += TILE) {
    for (int i = 0; i < TILE; ++i)
      a[i][x] = first + i < M && k + x < K ? __half2float(*at(gemm.a, first + i, k + x)) : 0.0f;
    __syncthreads();
    for (int i = 0; i < TILE && k + i < K; ++i)
      sum += a[x][i] * __half2float(*at(gemm.b, k + i, col));
    __syncthreads();
  }
  if (row < M) store(gemm.c, row, col, sum);
}

int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {
  const dim3 grid(gemm.c.cols, (gemm.c.rows + TILE - 1) / TILE);
  return tcgemm::launch(bank_conflicts, grid, dim3(TILE), 0, stream, gemm);
}
