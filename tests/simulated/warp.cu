// C[r, thread]: what warp-wide operations give, in a block and grid of three dimensions and with
// dynamic shared memory under a name of the kernel's own.
#include "host/gemm.cuh"

__global__ void warp(float* c, int64_t ld) {
  extern __shared__ float numbers[];
  const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const int threads = blockDim.x * blockDim.y * blockDim.z, lane = thread % 32;
  numbers[thread] = static_cast<float>(thread);
  __syncthreads();
  float* to = c + int64_t(block) * threads + thread;
  to[0 * ld] = numbers[threads - 1 - thread];
  to[1 * ld] = __shfl_xor_sync(0xffffffff, float(thread), 5);
  to[2 * ld] = __shfl_down_sync(0xffffffff, float(thread), 3, 8);
  to[3 * ld] = __shfl_up_sync(0xffffffff, float(thread), 2);
  to[4 * ld] = __shfl_sync(0xffffffff, float(thread), 7, 16);
  to[5 * ld] = static_cast<float>(__popc(__ballot_sync(0xffffffff, lane % 3 == 0)));
  // Two halves of a warp meet apart.
  float half_sum = 1.0f;
  const unsigned mask = lane < 16 ? 0x0000ffffu : 0xffff0000u;
  for (int step = 8; step > 0; step /= 2) half_sum += __shfl_xor_sync(mask, half_sum, step);
  to[6 * ld] = half_sum;
  to[7 * ld] = static_cast<float>(__syncthreads_count(thread % 5 == 0));
  float sum = static_cast<float>(thread);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
  if (lane == 0) atomicAdd(&c[8 * ld + int64_t(block) * threads], sum);
}

int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {
  return tcgemm::launch(warp, dim3(2, 1, 3), dim3(4, 8, 2), 64 * sizeof(float), stream,
                        static_cast<float*>(gemm.c.data), gemm.c.row_stride);
}
