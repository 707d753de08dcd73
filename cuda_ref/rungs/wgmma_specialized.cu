// C[M, N] = A[M, K] B[K, N] with warps that only load and warps that only multiply.
//
// ADDS           warp specialization. A producer thread runs ahead through a ring of NUM_STAGES
//                tiles and two consumer warpgroups follow; a full and an empty mbarrier per stage
//                are all that ties them. setmaxnreg hands the producer's registers to the
//                consumers, which affords a tile of 128 x 256: wgmma 64 x 256 x 16 reads 80 bytes
//                of shared memory per clock and TMA writes 48, of the 128 that there are.
// STILL MISSING  a block's first loads and its stores to C run while the tensor cores idle
//                (wgmma_tile_loop.cu, wgmma_epilogue.cu), and each block fetches a copy of B of its
//                own (wgmma_cluster.cu).
//
// grid       one block per BLOCK_M x BLOCK_N tile of C, in groups of GROUP_M tile rows; one to an
//            SM
// block      one producer and CONSUMERS consumer warpgroups step through K by BLOCK_K, over a ring
//            of NUM_STAGES x 48 KB
// warpgroup  64 x 256 of C: wgmma 64 x 256 x 16; 128 accumulators a thread
#include "tile/order.cuh"
#include "sm90/tile.cuh"

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

constexpr int BLOCK_M = 128;
constexpr int BLOCK_N = 256;
constexpr int BLOCK_K = 64;
constexpr int NUM_STAGES = 4;
constexpr int GROUP_M = 16;
constexpr int CONSUMERS = 2;
constexpr int THREADS = 128 * (1 + CONSUMERS);
// 168 registers a thread at launch: 128 * (40 + 2 * 232) = 384 * 168.
constexpr int PRODUCER_REGISTERS = 40;
constexpr int CONSUMER_REGISTERS = 232;
static_assert(PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS <= 168 * (1 + CONSUMERS));
constexpr uint32_t A_BYTES = BLOCK_M * BLOCK_K * 2, B_BYTES = BLOCK_N * BLOCK_K * 2;
constexpr uint32_t STAGE_BYTES = A_BYTES + B_BYTES;
constexpr uint32_t SHARED_BYTES = NUM_STAGES * STAGE_BYTES + 1024;  // 1024: alignment of panels
static_assert(SHARED_BYTES <= MOST_SHARED_BYTES - 64, "room for the barriers too");

template <typename In, typename Out, Major A, Major B>
__global__ void __launch_bounds__(THREADS, 1)
    wgmma_specialized(const __grid_constant__ CUtensorMap a_map,
                      const __grid_constant__ CUtensorMap b_map, PlainOutput c, int M, int N,
                      int K) {
  extern __shared__ uint8_t shared[];
  __shared__ uint64_t barriers[2 * NUM_STAGES];
  const uint32_t ring = (shared_address(shared) + 1023) / 1024 * 1024;
  const uint32_t full = shared_address(barriers), empty = full + 8 * NUM_STAGES;

  const int tiles_m = (M - 1) / BLOCK_M + 1, tiles_n = (N - 1) / BLOCK_N + 1;
  const Tile tile = grouped_tile<GROUP_M>(blockIdx.x, tiles_m, tiles_n);
  const int m = tile.m * BLOCK_M, n = tile.n * BLOCK_N;
  const int k_tiles = (K - 1) / BLOCK_K + 1;

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < NUM_STAGES; ++stage) {
      mbarrier_init(full + 8 * stage, 1);
      mbarrier_init(empty + 8 * stage, 4 * CONSUMERS);  // one arrival per consumer warp
    }
    fence_mbarrier_init();
  }
  __syncthreads();

  // The same value in all lanes, and known to be so: each role is one branch of whole warpgroups.
  const int warpgroup = __shfl_sync(0xFFFFFFFF, threadIdx.x / 128, 0);
  if (warpgroup == 0) {
    setmaxnreg_dec<PRODUCER_REGISTERS>();
    if (threadIdx.x == 0) {
      prefetch_tensormap(&a_map);
      prefetch_tensormap(&b_map);
      uint32_t stage = 0, phase = 0;
      for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
        mbarrier_try_wait_parity(empty + 8 * stage, phase ^ 1);
        const uint32_t barrier = full + 8 * stage, tiles = ring + stage * STAGE_BYTES;
        mbarrier_arrive_expect_tx(barrier, STAGE_BYTES);
        load_tile<A, BLOCK_M>(tiles, &a_map, barrier, m, k_tile * BLOCK_K);
        load_tile<B, BLOCK_N>(tiles + A_BYTES, &b_map, barrier, n, k_tile * BLOCK_K);
        if (++stage == NUM_STAGES) stage = 0, phase ^= 1;
      }
    }
  } else {
    setmaxnreg_inc<CONSUMER_REGISTERS>();
    const int consumer = warpgroup - 1;
    const bool arrives = threadIdx.x % 32 == 0;
    const uint64_t a_desc = wgmma_descriptor(ring + consumer * BYTES_PER_64_MN);
    const uint64_t b_desc = wgmma_descriptor(ring + A_BYTES);
    float d[BLOCK_N / 2];
    uint32_t stage = 0, phase = 0;
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
      mbarrier_try_wait_parity(full + 8 * stage, phase);
      const uint32_t offset = stage * (STAGE_BYTES >> 4);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < BLOCK_K / MMA_K; ++k)
        wgmma_m64n256k16<In, A, B>(d, a_desc + offset + k * DESCRIPTOR_PER_MMA_K<A>,
                                   b_desc + offset + k * DESCRIPTOR_PER_MMA_K<B>,
                                   k_tile > 0 || k > 0);
      wgmma_commit_group();
      // One group stays in flight; the one before has read its stage, which goes back.
      wgmma_wait_group<1>();
      if (arrives && k_tile > 0)
        mbarrier_arrive(empty + 8 * (stage == 0 ? NUM_STAGES - 1 : stage - 1));
      if (++stage == NUM_STAGES) stage = 0, phase ^= 1;
    }
    wgmma_wait_group<0>();
    store_accumulators<Out>(c, d, m + 64 * consumer, n, M, N);
  }
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = with_rows_of_c(asked);
  CUtensorMap a_map, b_map;
  Major a_major, b_major;
  int error = operand_map(gemm.a, false, gemm.in, BLOCK_M, &a_map, &a_major);
  if (error == cudaSuccess)
    error = operand_map(gemm.b, true, gemm.in, BLOCK_N, &b_map, &b_major);
  if (error != cudaSuccess) return error;

  const int M = static_cast<int>(gemm.c.rows), N = static_cast<int>(gemm.c.cols);
  const int K = static_cast<int>(gemm.a.cols);
  return with_types_and_majors(gemm, a_major, b_major, [&](auto in, auto out, auto a, auto b) {
    return launch_tiles(wgmma_specialized<decltype(in), decltype(out), a, b>, ceil_div(M, BLOCK_M),
                        ceil_div(N, BLOCK_N), dim3(THREADS), SHARED_BYTES, stream, a_map, b_map,
                        plain_output(gemm.c, gemm.out), M, N, K);
  });
}
