// C[M, N] = A[M, K] B[K, N] by blocks that stay on their SM and loop over tiles of C.
//
// ADDS           a persistent loop. There is one block to an SM, and block i computes tiles i,
//                i + blocks, i + 2 blocks, ... The ring of stages knows no tiles: while the
//                consumers store one, the producer fills the ring for the next. Barriers are
//                initialised, descriptors fetched and registers moved once, not once for each tile.
// STILL MISSING  each block fetches a copy of B of its own (wgmma_cluster.cu), and the tensor cores
//                idle while the consumers store C (wgmma_epilogue.cu).
//
// grid       one block per SM, or per tile of C where there are fewer; tiles in groups of GROUP_M
//            rows
// block      one producer and CONSUMERS consumer warpgroups step through the K of tile after tile
//            by BLOCK_K, over a ring of NUM_STAGES x 48 KB; BLOCK_M x BLOCK_N of C
// warpgroup  64 x 256 of C: wgmma 64 x 256 x 16; 128 accumulators a thread
#include <algorithm>

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
    wgmma_tile_loop(const __grid_constant__ CUtensorMap a_map,
                    const __grid_constant__ CUtensorMap b_map, PlainOutput c, int M, int N, int K) {
  extern __shared__ uint8_t shared[];
  __shared__ uint64_t barriers[2 * NUM_STAGES];
  const uint32_t ring = (shared_address(shared) + 1023) / 1024 * 1024;
  const uint32_t full = shared_address(barriers), empty = full + 8 * NUM_STAGES;

  const int tiles_m = (M - 1) / BLOCK_M + 1, tiles_n = (N - 1) / BLOCK_N + 1;
  const int tiles = tiles_m * tiles_n, k_tiles = (K - 1) / BLOCK_K + 1;

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
  uint32_t stage = 0, phase = 0;  // of each role's own; they go on from tile to tile
  if (warpgroup == 0) {
    setmaxnreg_dec<PRODUCER_REGISTERS>();
    if (threadIdx.x == 0) {
      prefetch_tensormap(&a_map);
      prefetch_tensormap(&b_map);
      for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
        const Tile tile = grouped_tile<GROUP_M>(index, tiles_m, tiles_n);
        for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
          mbarrier_try_wait_parity(empty + 8 * stage, phase ^ 1);
          const uint32_t barrier = full + 8 * stage, to = ring + stage * STAGE_BYTES;
          mbarrier_arrive_expect_tx(barrier, STAGE_BYTES);
          load_tile<A, BLOCK_M>(to, &a_map, barrier, tile.m * BLOCK_M, k_tile * BLOCK_K);
          load_tile<B, BLOCK_N>(to + A_BYTES, &b_map, barrier, tile.n * BLOCK_N, k_tile * BLOCK_K);
          if (++stage == NUM_STAGES) stage = 0, phase ^= 1;
        }
      }
    }
  } else {
    setmaxnreg_inc<CONSUMER_REGISTERS>();
    const int consumer = warpgroup - 1;
    const bool arrives = threadIdx.x % 32 == 0;
    const uint64_t a_desc = wgmma_descriptor(ring + consumer * BYTES_PER_64_MN);
    const uint64_t b_desc = wgmma_descriptor(ring + A_BYTES);
    float d[BLOCK_N / 2];
    for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
      const Tile tile = grouped_tile<GROUP_M>(index, tiles_m, tiles_n);
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
      // The tile's last stage too: the producer wants it for the next tile, before C is stored.
      if (arrives) mbarrier_arrive(empty + 8 * (stage == 0 ? NUM_STAGES - 1 : stage - 1));
      store_accumulators<Out>(c, d, tile.m * BLOCK_M + 64 * consumer, tile.n * BLOCK_N, M, N);
    }
  }
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = with_rows_of_c(asked);
  CUtensorMap a_map, b_map;
  Major a_major, b_major;
  int sms = 0;
  int error = operand_map(gemm.a, false, gemm.in, BLOCK_M, &a_map, &a_major);
  if (error == cudaSuccess)
    error = operand_map(gemm.b, true, gemm.in, BLOCK_N, &b_map, &b_major);
  if (error == cudaSuccess) error = multiprocessors(&sms);
  if (error != cudaSuccess) return error;

  const int M = static_cast<int>(gemm.c.rows), N = static_cast<int>(gemm.c.cols);
  const int K = static_cast<int>(gemm.a.cols);
  const int64_t tiles = ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N);
  // A block's index goes past the last tile by up to a grid.
  if (tiles > INT32_MAX - sms) return cudaErrorInvalidConfiguration;
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>(tiles, sms)));
  return with_types_and_majors(gemm, a_major, b_major, [&](auto in, auto out, auto a, auto b) {
    return launch(wgmma_tile_loop<decltype(in), decltype(out), a, b>, grid, dim3(THREADS),
                  SHARED_BYTES, stream, a_map, b_map, plain_output(gemm.c, gemm.out), M, N, K);
  });
}
