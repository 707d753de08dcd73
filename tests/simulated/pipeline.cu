// C[M, N] = A[M, 8] B[8, N] with M and N up to 32, by CUDA's pipeline primitives: a row of A in 16
// bytes, a column of B in 8 bytes and 8 of zeros, each in a batch of its own.
#include "host/gemm.cuh"

#include <cuda_pipeline.h>

__global__ void pipeline(tcgemm::Gemm gemm) {
  __shared__ alignas(16) __half a[32][8];
  __shared__ alignas(16) __half b[32][8];
  const int lane = threadIdx.x;
  const bool row = lane < gemm.c.rows, col = lane < gemm.c.cols;
  const __half* from_a = static_cast<const __half*>(gemm.a.data) + lane * gemm.a.row_stride;
  const __half* from_b = static_cast<const __half*>(gemm.b.data) + lane * gemm.b.col_stride;
  if (row) __pipeline_memcpy_async(a[lane], from_a, 16);
  __pipeline_commit();
  if (col) __pipeline_memcpy_async(b[lane], from_b, 16, 8);
  __pipeline_commit();
  float a_row[8];
  __pipeline_wait_prior(1);
  for (int k = 0; row && k < 8; ++k) a_row[k] = __half2float(a[lane][k]);
  __pipeline_wait_prior(0);
  __syncwarp();
  for (int n = 0; row && n < gemm.c.cols; ++n) {
    float sum = 0.0f;
    for (int k = 0; k < 8; ++k) sum += a_row[k] * __half2float(b[n][k]);
    static_cast<float*>(gemm.c.data)[lane * gemm.c.row_stride + n] = sum;
  }
}

int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {
  return tcgemm::launch(pipeline, dim3(1), dim3(32), 0, stream, gemm);
}
