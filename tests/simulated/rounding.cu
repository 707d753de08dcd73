// C[r, i]: element i of A's row, rounded by the r-th narrow type and widened again.
#include "host/gemm.cuh"
#ifdef TCGEMM_SIMULATOR
#include "cuda_fp8.h"
#else
#include <cuda_fp8.h>
#endif

__global__ void rounding(const float* a, float* c, int64_t n, int64_t ld) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i >= n) return;
  const float x = a[i];
  c[0 * ld + i] = __half2float(__float2half_rn(x));
  c[1 * ld + i] = __bfloat162float(__float2bfloat16_rn(x));
  c[2 * ld + i] = nvcuda::wmma::__float_to_tf32(x);
  c[3 * ld + i] = static_cast<float>(__nv_fp8_e4m3(x));
  c[4 * ld + i] = static_cast<float>(__nv_fp8_e5m2(x));
}

int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {
  const unsigned blocks = static_cast<unsigned>((gemm.c.cols + 127) / 128);
  return tcgemm::launch(rounding, dim3(blocks), dim3(128), 0, stream,
                        static_cast<const float*>(gemm.b.data), static_cast<float*>(gemm.c.data),
                        gemm.c.cols, gemm.c.row_stride);
}
