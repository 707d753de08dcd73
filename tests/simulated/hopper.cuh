// C[M, N] = A[M, K] B[K, N], float16 in, float32 out, M a multiple of 64, N of 128: a producer warp
// and a consumer warpgroup over a ring of stages, with bulk copies and wgmma. A row-major (K-major),
// B row-major (MN-major), C stored by bulk copies.
//
// NUM_STAGES, and the faults NO_FULL_WAIT, NO_EMPTY_WAIT, LATE_WAIT, NO_MULTIPLY_WAIT, FEWER_BYTES,
// NO_READ_WAIT, NO_MULTIPLY_FENCE, NO_PROXY_FENCE, are macros.
#pragma once

#include "host/gemm.cuh"

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

constexpr int BLOCK_M = 64, BLOCK_N = 128, BLOCK_K = 64;
constexpr uint32_t A_BYTES = BLOCK_M * BLOCK_K * 2, B_BYTES = BLOCK_N * BLOCK_K * 2;
constexpr uint32_t STAGE_BYTES = A_BYTES + B_BYTES, CHUNK_BYTES = 64 * 128;
constexpr uint32_t SHARED_BYTES = NUM_STAGES * STAGE_BYTES + 2 * CHUNK_BYTES + 1024;

__device__ uint64_t descriptor(uint32_t shared) {
  return (shared & 0x3FFFF) >> 4 | uint64_t(8192 >> 4) << 16 | uint64_t(1024 >> 4) << 32 |
         uint64_t(1) << 62;
}

__global__ void hopper(CUtensorMap a_map, CUtensorMap b_map, CUtensorMap c_map, int K) {
  extern __shared__ uint8_t shared[];
  __shared__ uint64_t barriers[2 * NUM_STAGES];
  const uint32_t ring = (shared_address(shared) + 1023) / 1024 * 1024;
  const uint32_t chunks = ring + NUM_STAGES * STAGE_BYTES;
  const uint32_t full = shared_address(barriers), empty = full + 8 * NUM_STAGES;
  const int m = blockIdx.y * BLOCK_M, n = blockIdx.x * BLOCK_N, k_tiles = (K + BLOCK_K - 1) / BLOCK_K;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < NUM_STAGES; ++stage) {
      mbarrier_init(full + 8 * stage, 1);
      mbarrier_init(empty + 8 * stage, 4);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  uint32_t stage = 0, phase = 0;
  if (threadIdx.x >= 128) {
    if (threadIdx.x == 128) {
      for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
#ifndef NO_EMPTY_WAIT
        mbarrier_try_wait_parity(empty + 8 * stage, phase ^ 1);
#endif
        const uint32_t barrier = full + 8 * stage, a_tile = ring + stage * STAGE_BYTES;
#ifdef FEWER_BYTES
        mbarrier_arrive_expect_tx(barrier, STAGE_BYTES - 16);
#else
        mbarrier_arrive_expect_tx(barrier, STAGE_BYTES);
#endif
        cp_async_bulk_tensor_2d(a_tile, &a_map, barrier, k_tile * BLOCK_K, m);
        for (int i = 0; i < BLOCK_N / 64; ++i)
          cp_async_bulk_tensor_2d(a_tile + A_BYTES + i * 8192, &b_map, barrier, n + 64 * i,
                                  k_tile * BLOCK_K);
        if (++stage == NUM_STAGES) stage = 0, phase ^= 1;
      }
    }
    return;
  }
  float d[BLOCK_N / 2];
  for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
#ifndef NO_FULL_WAIT
    mbarrier_try_wait_parity(full + 8 * stage, phase);
#endif
    const uint64_t a = descriptor(ring + stage * STAGE_BYTES);
    const uint64_t b = descriptor(ring + stage * STAGE_BYTES + A_BYTES);
#ifndef NO_MULTIPLY_FENCE
    wgmma_fence();
#endif
    for (int k = 0; k < BLOCK_K / 16; ++k)
      wgmma_m64n128k16<__half, Major::K, Major::MN>(d, a + k * 2, b + k * 128, k_tile > 0 || k > 0);
    wgmma_commit_group();
#ifdef LATE_WAIT
    wgmma_wait_group<1>();
#elif !defined(NO_MULTIPLY_WAIT)
    wgmma_wait_group<0>();
#endif
    if (threadIdx.x % 32 == 0) mbarrier_arrive(empty + 8 * stage);
    if (++stage == NUM_STAGES) stage = 0, phase ^= 1;
  }
#ifdef LATE_WAIT
  wgmma_wait_group<0>();
#endif
  // C in chunks of 32 columns through two buffers, each unit of 16 bytes where the swizzle has it.
  const uint32_t row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  for (int i = 0; i < BLOCK_N / 32; ++i) {
    const uint32_t chunk = chunks + i % 2 * CHUNK_BYTES;
#ifndef NO_READ_WAIT
    if (threadIdx.x == 0) cp_async_bulk_wait_group_read<1>();
#endif
    bar_sync(1, 128);
    for (int j = 0; j < 4; ++j) {
      const uint32_t unit = 2 * j + threadIdx.x % 4 / 2;
      const uint32_t at = chunk + row * 128 + (unit ^ row % 8) * 16 + threadIdx.x % 2 * 8;
      const float* x = d + 16 * i + 4 * j;
      *static_cast<float2*>(simulator::shared_pointer(at)) = make_float2(x[0], x[1]);
      *static_cast<float2*>(simulator::shared_pointer(at + 1024)) = make_float2(x[2], x[3]);
    }
#ifndef NO_PROXY_FENCE
    fence_proxy_async();
#endif
    bar_sync(1, 128);
    if (threadIdx.x == 0) {
      tma_store_2d(&c_map, chunk, n + 32 * i, m);
      cp_async_bulk_commit_group();
    }
  }
  if (threadIdx.x == 0) cp_async_bulk_wait_group_read<0>();
}

CUtensorMap map_of(const Matrix& matrix, uint32_t box_inner, uint32_t box_outer, uint32_t bytes) {
  return {matrix.data, static_cast<uint64_t>(matrix.cols), static_cast<uint64_t>(matrix.rows),
          static_cast<uint64_t>(matrix.row_stride) * bytes, box_inner, box_outer, bytes, {}};
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((gemm.c.cols + BLOCK_N - 1) / BLOCK_N),
                  static_cast<unsigned>((gemm.c.rows + BLOCK_M - 1) / BLOCK_M));
  return tcgemm::launch(hopper, grid, dim3(160), SHARED_BYTES, stream,
                        map_of(gemm.a, BLOCK_K, BLOCK_M, 2), map_of(gemm.b, 64, BLOCK_K, 2),
                        map_of(gemm.c, 32, 64, 4), static_cast<int>(gemm.a.cols));
}
