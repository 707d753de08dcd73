// Every WMMA type pair and shape, a block each: C[32 b + i, j] is block b's product of the first
// m x k of A[32, 16] and k x n of B[16, 32], whose elements are small integers.
#include "host/gemm.cuh"

namespace wmma = nvcuda::wmma;

template <int M, int N, int K, typename In, typename Stored, typename Acc, typename AccStored,
          bool COLUMN>
__device__ void product(tcgemm::Gemm gemm) {
  __shared__ alignas(32) Stored a[32 * 32];
  __shared__ alignas(32) Stored b[32 * 32];
  __shared__ alignas(32) AccStored c[32 * 32];
  using Layout = std::conditional_t<COLUMN, wmma::col_major, wmma::row_major>;
  const float* from_a = static_cast<const float*>(gemm.a.data);
  const float* from_b = static_cast<const float*>(gemm.b.data);
  const int lane = threadIdx.x;
  for (int i = lane; i < 1024; i += 32) {
    const int row = i / 32, col = i % 32;
    a[i] = b[i] = Stored(0);
    if (COLUMN) {
      if (col < M && row < K) a[i] = Stored(from_a[col * gemm.a.row_stride + row]);
      if (col < K && row < N) b[i] = Stored(from_b[col * gemm.b.row_stride + row]);
    } else {
      if (row < M && col < K) a[i] = Stored(from_a[row * gemm.a.row_stride + col]);
      if (row < K && col < N) b[i] = Stored(from_b[row * gemm.b.row_stride + col]);
    }
    c[i] = AccStored(0);
  }
  __syncwarp();
  wmma::fragment<wmma::matrix_a, M, N, K, In, Layout> a_fragment;
  wmma::fragment<wmma::matrix_b, M, N, K, In, Layout> b_fragment;
  wmma::fragment<wmma::accumulator, M, N, K, Acc> sum;
  wmma::fill_fragment(sum, AccStored(0));
  wmma::load_matrix_sync(a_fragment, a, 32);
  wmma::load_matrix_sync(b_fragment, b, 32);
  wmma::mma_sync(sum, a_fragment, b_fragment, sum);
  wmma::store_matrix_sync(c, sum, 32, COLUMN ? wmma::mem_col_major : wmma::mem_row_major);
  __syncwarp();
  float* to = static_cast<float*>(gemm.c.data) + int64_t(blockIdx.x) * 32 * gemm.c.row_stride;
  for (int i = lane; i < 1024; i += 32)
    to[i / 32 * gemm.c.row_stride + i % 32] =
        static_cast<float>(COLUMN ? c[i % 32 * 32 + i / 32] : c[i]);
}

template <typename In, typename Stored, typename Acc, typename AccStored>
__device__ void shapes(tcgemm::Gemm gemm, int shape) {
  if (shape == 0) product<16, 16, 16, In, Stored, Acc, AccStored, false>(gemm);
  if (shape == 1) product<32, 8, 16, In, Stored, Acc, AccStored, true>(gemm);
  if (shape == 2) product<8, 32, 16, In, Stored, Acc, AccStored, false>(gemm);
}

__global__ void wmma_types(tcgemm::Gemm gemm) {
  const int block = blockIdx.x, shape = block % 3;
  switch (block / 3) {
    case 0: shapes<__half, __half, float, float>(gemm, shape); break;
    case 1: shapes<__half, __half, __half, __half>(gemm, shape); break;
    case 2: shapes<__nv_bfloat16, __nv_bfloat16, float, float>(gemm, shape); break;
    case 3: shapes<signed char, signed char, int, int>(gemm, shape); break;
    case 4: shapes<unsigned char, unsigned char, int, int>(gemm, shape); break;
    default:
      if (shape == 0) product<16, 16, 8, wmma::precision::tf32, float, float, float, true>(gemm);
      if (shape == 1) product<8, 8, 4, double, double, double, double, false>(gemm);
      if (shape == 2) product<8, 8, 4, double, double, double, double, true>(gemm);
  }
}

int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {
  return tcgemm::launch(wmma_types, dim3(static_cast<unsigned>(gemm.c.rows / 32)), dim3(32), 0,
                        stream, gemm);
}
