// C[16, 8] = A[16, 16] B[16, 8] by ldmatrix and one mma.sync.m16n8k16, float16 and float32.
#include "ptx/cp_async.cuh"

__global__ void fragments(tcgemm::Gemm gemm) {
  using namespace tcgemm;
  __shared__ alignas(16) __half a[16][16];
  __shared__ alignas(16) __half b[16][8];
  const int lane = threadIdx.x;
  const __half* from_a = static_cast<const __half*>(gemm.a.data);
  const __half* from_b = static_cast<const __half*>(gemm.b.data);
  cp_async_16(&a[lane / 2][lane % 2 * 8], from_a + lane / 2 * gemm.a.row_stride + lane % 2 * 8);
  // The lower lanes copy B, the others ask for nothing and get zeros over bytes of their own.
  if (lane < 16) cp_async_16(&b[lane][0], from_b + lane * gemm.b.row_stride, 16);
  cp_async_commit();
  cp_async_wait<0>();
  __syncwarp();
  uint32_t a_registers[4], b_registers[2];
  float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  simulator::ldmatrix(a_registers, &a[lane % 16][lane / 16 * 8], 4, false, {__FILE__, __LINE__});
  simulator::ldmatrix(b_registers, &b[lane % 16][0], 2, true, {__FILE__, __LINE__});
  simulator::mma_ptx(16, simulator::Element::f16, simulator::Element::f32, simulator::Element::f16,
                     c, a_registers, b_registers, c, {__FILE__, __LINE__});
  float* to = static_cast<float*>(gemm.c.data) + lane / 4 * gemm.c.row_stride + lane % 4 * 2;
  to[0] = c[0];
  to[1] = c[1];
  to[8 * gemm.c.row_stride] = c[2];
  to[8 * gemm.c.row_stride + 1] = c[3];
}

int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {
  return tcgemm::launch(fragments, dim3(1), dim3(32), 0, stream, gemm);
}
