// A warp copies 512 bytes of A to shared memory, 16 bytes a lane: rows as long as A's, N 16-byte
// units apart. Where C is float32 the copies go through the L1, otherwise past it.
#include "ptx/cp_async.cuh"

__global__ void copies(tcgemm::Gemm gemm) {
  using namespace tcgemm;
  __shared__ alignas(128) __half tile[8192];
  const int units = static_cast<int>(gemm.a.cols) / VECTOR;  // of 16 bytes in a row
  const int row = threadIdx.x / units, at = threadIdx.x % units * VECTOR;
  const __half* from =
      static_cast<const __half*>(gemm.a.data) + row * gemm.a.row_stride + at;
  __half* to = &tile[row * gemm.b.cols * VECTOR + at];
  if (gemm.out == DType::f32) {
    cp_async_ca_16(to, from);
  } else {
    cp_async_16(to, from);
  }
  cp_async_commit();
  cp_async_wait<0>();
}

int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {
  return tcgemm::launch(copies, dim3(1), dim3(32), 0, stream, gemm);
}
