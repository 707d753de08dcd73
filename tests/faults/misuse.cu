// Small kernels, wrong ones and right ones, of which SPLITS of the plan chooses one. C is [64, 1] and
// A too, both float32.
#include "host/gemm.cuh"

using namespace tcgemm;

__device__ int next_tile;

__global__ void atomic_past_the_end(float* c) {
  c[threadIdx.x] = 0.0f;
  atomicAdd(&c[64 + threadIdx.x / 64], 1.0f);
}
__global__ void atomic_on_an_input(float* c, float* a) {
  c[threadIdx.x] = 0.0f;
  atomicAdd(&a[0], 1.0f);
}
__global__ void atomics_not_awaited(float* c) {
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  atomicAdd(&count, 1);
  c[threadIdx.x] = static_cast<float>(count);
}
__global__ void atomics(float* c) {
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  atomicAdd(&count, 1);
  __syncthreads();
  c[threadIdx.x] = static_cast<float>(count);
}
__global__ void atomics_beside_a_store(float* c) {
  if (blockIdx.x == 0) c[threadIdx.x] = 0.0f;
  atomicAdd(&c[threadIdx.x], 1.0f);
}
__global__ void fill(float* c, int from) { c[from + threadIdx.x] = 0.0f; }
__global__ void add(float* c) { atomicAdd(&c[threadIdx.x], 1.0f); }

// Long enough for another process to take blocks as well.
__global__ void tiles_by_counter(float* c) {
  __shared__ int tile;
  if (threadIdx.x == 0) tile = atomicAdd(&next_tile, 1);
  __syncthreads();
  volatile float x = 1.0f;
  for (int i = 0; i < 300000; ++i) x = x * 1.0f;
  c[tile] = x;
}
__global__ void copies_by_memcpy(float* c, const float* a) {
  __shared__ float tile[64];
  if (threadIdx.x == 0) memcpy(tile, a, sizeof(tile));
  __syncthreads();
  c[threadIdx.x] = tile[threadIdx.x];
}
__global__ void memcpy_past_the_end(float* c, const float* a, int n) {
  if (threadIdx.x == 0) memcpy(c, a, (n + 1) * sizeof(float));
}
__global__ void reads_what_another_block_writes(float* c) {
  if (blockIdx.x == 0) c[threadIdx.x] = 1.0f;
  else c[32 + threadIdx.x] = c[threadIdx.x] + 1.0f;
}
__global__ void shuffles_from_outside(float* c) {
  float x = 1.0f;
  if (threadIdx.x < 16) x = __shfl_sync(0xffff, x, 20);
  c[threadIdx.x] = x;
}
__global__ void barrier_16(float* c) {
  c[threadIdx.x] = 0.0f;
  sm90::bar_sync(16, 64);
}
__global__ void barrier_of_40(float* c) {
  c[threadIdx.x] = 0.0f;
  sm90::bar_sync(1, 40);
}
__global__ void barrier_of_two_counts(float* c) {
  c[threadIdx.x] = 0.0f;
  sm90::bar_sync(1, threadIdx.x < 32 ? 96 : 64);
}
__global__ void copies_12_bytes(float* c, const float* a) {
  __shared__ __align__(16) float tile[256];
  __pipeline_memcpy_async(&tile[threadIdx.x * 4], a, 12);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  c[threadIdx.x] = tile[threadIdx.x * 4];
}
__global__ void copies_nothing_of_an_odd_address(float* c, const float* a) {
  __shared__ __align__(16) float tile[256];
  cp_async_16(&tile[threadIdx.x * 4], a + threadIdx.x / 63, 0);
  cp_async_commit();
  cp_async_wait<0>();
  c[threadIdx.x] = tile[threadIdx.x * 4];
}
__global__ void arrives_at_nothing(float* c) {
  __shared__ uint64_t barrier;
  sm90::mbarrier_arrive(sm90::shared_address(&barrier));
  c[threadIdx.x] = 0.0f;
}
__device__ __noinline__ int deeper(int n, volatile int* from) {
  volatile int here[16];
  here[n % 16] = n;
  return n < 0 ? *from : deeper(n + 1, here) + here[3];
}
__global__ void recursion(float* c) {
  int x = 0;
  c[threadIdx.x] = static_cast<float>(deeper(threadIdx.x, &x));
}
__global__ void large_local(float* c) {
  volatile char large[300 * 1024];
  for (int i = 0; i < 300 * 1024; i += 64) large[i] = 1;
  c[threadIdx.x] = large[64];
}
__global__ void divides(float* c, int by) { c[threadIdx.x] = static_cast<float>(5 / by); }
__global__ void shared_twice(float* c) {
  __shared__ float TILE_A[64];
  __shared__ float TILE_B[64];
  TILE_A[threadIdx.x] = TILE_B[threadIdx.x] = 1.0f;
  c[threadIdx.x] = TILE_A[threadIdx.x] + TILE_B[threadIdx.x];
}
__global__ void warp_votes_and_atomics(float* c) {
  __shared__ int low, high, swapped;
  __shared__ unsigned bits;
  const int x = threadIdx.x;
  if (x == 0) low = 100, high = -1, swapped = -1, bits = 0;
  __syncthreads();
  atomicMin(&low, x), atomicMax(&high, x), atomicCAS(&swapped, -1, 7), atomicOr(&bits, 1u << x % 8);
  const unsigned half_warp = x % 32 < 16 ? 0xffffu : 0xffff0000u;
  const bool right = __reduce_add_sync(half_warp, 1) == 16 &&
                     __reduce_max_sync(half_warp, x % 16) == 15 &&
                     __match_any_sync(~0u, x % 2) == (x % 2 ? 0xaaaaaaaau : 0x55555555u) &&
                     __brev(1u) == 0x80000000u && __popcll(~0ull) == 64 &&
                     __low2float(__half2half2(__float2half(2.0f))) == 2.0f;
  __syncthreads();
  c[x] = right && low == 0 && high == 63 && swapped == 7 && bits == 255 ? 1.0f : 0.0f;
}

int tcgemm_launch(const Gemm& gemm, cudaStream_t stream) {
  float* c = static_cast<float*>(gemm.c.data);
  float* a = static_cast<float*>(gemm.a.data);
  const dim3 one(1), two(2), warp(32), block(64);
  switch (gemm.plan->splits) {
    case 1: return launch(atomic_past_the_end, one, block, 0, stream, c);
    case 2: return launch(atomic_on_an_input, one, block, 0, stream, c, a);
    case 3: return launch(atomics_not_awaited, one, block, 0, stream, c);
    case 4: return launch(atomics, one, block, 0, stream, c);
    case 5: return launch(atomics_beside_a_store, two, block, 0, stream, c);
    case 6:
      if (const int error = launch(fill, one, block, 0, stream, c, 0)) return error;
      return launch(add, two, block, 0, stream, c);
    case 7:
      if (const int error = launch(fill, one, warp, 0, stream, c, 0)) return error;
      return launch(fill, one, warp, 0, stream, c, 32);
    case 8: return launch(tiles_by_counter, block, dim3(1), 0, stream, c);
    case 9: return launch(copies_by_memcpy, one, block, 0, stream, c, a);
    case 10: return launch(memcpy_past_the_end, one, block, 0, stream, c, a, 64);
    case 11: return launch(reads_what_another_block_writes, two, warp, 0, stream, c);
    case 12: return launch(shuffles_from_outside, one, block, 0, stream, c);
    case 13: return launch(barrier_16, one, block, 0, stream, c);
    case 14: return launch(barrier_of_40, one, block, 0, stream, c);
    case 15: return launch(barrier_of_two_counts, one, block, 0, stream, c);
    case 16: return launch(copies_12_bytes, one, block, 0, stream, c, a);
    case 17: return launch(arrives_at_nothing, one, block, 0, stream, c);
    case 18: return launch(recursion, one, block, 0, stream, c);
    case 19: return launch(large_local, one, block, 0, stream, c);
    case 20: return launch(divides, one, block, 0, stream, c, 0);
    case 21: return launch(shared_twice, one, block, 0, stream, c);
    case 24: return launch(copies_nothing_of_an_odd_address, one, block, 0, stream, c, a);
    case 23: return launch(warp_votes_and_atomics, one, block, 0, stream, c);
    case 22: return launch(shared_twice, one, block, 227 * 1024 - 256, stream, c);
  }
  return cudaErrorInvalidValue;
}
