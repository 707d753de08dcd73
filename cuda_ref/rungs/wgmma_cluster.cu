// C[M, N] = A[M, K] B[K, N] by pairs of blocks that share their loads of B.
//
// ADDS           a thread block cluster and multicast. Two blocks on neighbouring SMs compute two
//                tiles of C one above the other, which need the same tile of B. Each block loads
//                half of it, and TMA writes that half into the shared memory of both: the pair
//                reads B from the L2 once. So a stage is empty only when the consumers of both
//                blocks have left it, for either producer writes into both.
// STILL MISSING  the tensor cores idle while the consumers store C (wgmma_epilogue.cu). A C of one
//                row of tiles keeps half of the blocks busy with nothing.
//
// grid       one cluster per two SMs, or per two tiles of C where there are fewer; in groups of
//            GROUP_M tile rows
// cluster    CLUSTER blocks along M; each loads half of the BLOCK_N columns of B for both
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
constexpr int CLUSTER = std::min(2, MAX_CLUSTER);
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
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
    wgmma_cluster(const __grid_constant__ CUtensorMap a_map,
                  const __grid_constant__ CUtensorMap b_map, PlainOutput c, int M, int N, int K) {
  extern __shared__ uint8_t shared[];
  __shared__ uint64_t barriers[2 * NUM_STAGES];
  const uint32_t ring = (shared_address(shared) + 1023) / 1024 * 1024;
  const uint32_t full = shared_address(barriers), empty = full + 8 * NUM_STAGES;

  // Tiles of a cluster: a row of them is CLUSTER rows of the blocks' tiles.
  const int rank = cluster_ctarank();
  const int tiles_m = (M - 1) / (CLUSTER * BLOCK_M) + 1, tiles_n = (N - 1) / BLOCK_N + 1;
  const int tiles = tiles_m * tiles_n, k_tiles = (K - 1) / BLOCK_K + 1;
  const int first = blockIdx.x / CLUSTER, step = gridDim.x / CLUSTER;

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < NUM_STAGES; ++stage) {
      mbarrier_init(full + 8 * stage, 1);
      // One arrival per consumer warp of the cluster: a multicast lands in every block's stage.
      mbarrier_init(empty + 8 * stage, 4 * CONSUMERS * CLUSTER);
    }
    fence_mbarrier_init();
  }
  // Nobody multicasts into a block, or arrives there, before its barriers are there.
  barrier_cluster_arrive();
  barrier_cluster_wait();

  // The same value in all lanes, and known to be so: each role is one branch of whole warpgroups.
  const int warpgroup = __shfl_sync(0xFFFFFFFF, threadIdx.x / 128, 0);
  uint32_t stage = 0, phase = 0;  // of each role's own; they go on from tile to tile
  if (warpgroup == 0) {
    setmaxnreg_dec<PRODUCER_REGISTERS>();
    if (threadIdx.x == 0) {
      prefetch_tensormap(&a_map);
      prefetch_tensormap(&b_map);
      for (int index = first; index < tiles; index += step) {
        const Tile tile = grouped_tile<GROUP_M / CLUSTER>(index, tiles_m, tiles_n);
        const int m = (tile.m * CLUSTER + rank) * BLOCK_M, n = tile.n * BLOCK_N;
        for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
          mbarrier_try_wait_parity(empty + 8 * stage, phase ^ 1);
          const uint32_t barrier = full + 8 * stage, to = ring + stage * STAGE_BYTES;
          mbarrier_arrive_expect_tx(barrier, STAGE_BYTES);
          load_tile<A, BLOCK_M>(to, &a_map, barrier, m, k_tile * BLOCK_K);
          // Half of B, to both: this block's barrier counts the other's half in as well.
          load_tile_multicast<B, BLOCK_N>(to + A_BYTES, &b_map, barrier, n, k_tile * BLOCK_K, rank,
                                          CLUSTER);
          if (++stage == NUM_STAGES) stage = 0, phase ^= 1;
        }
      }
    }
  } else {
    setmaxnreg_inc<CONSUMER_REGISTERS>();
    const int consumer = warpgroup - 1;
    const int lane = threadIdx.x % 32;  // lane i of a warp tells block i of the cluster
    const uint64_t a_desc = wgmma_descriptor(ring + consumer * BYTES_PER_64_MN);
    const uint64_t b_desc = wgmma_descriptor(ring + A_BYTES);
    float d[BLOCK_N / 2];
    for (int index = first; index < tiles; index += step) {
      const Tile tile = grouped_tile<GROUP_M / CLUSTER>(index, tiles_m, tiles_n);
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
        if (lane < CLUSTER && k_tile > 0)
          mbarrier_arrive_cluster(empty + 8 * (stage == 0 ? NUM_STAGES - 1 : stage - 1), lane);
        if (++stage == NUM_STAGES) stage = 0, phase ^= 1;
      }
      wgmma_wait_group<0>();
      // The tile's last stage too: the producer wants it for the next tile, before C is stored.
      if (lane < CLUSTER)
        mbarrier_arrive_cluster(empty + 8 * (stage == 0 ? NUM_STAGES - 1 : stage - 1), lane);
      const int m = (tile.m * CLUSTER + rank) * BLOCK_M + 64 * consumer;
      store_accumulators<Out>(c, d, m, tile.n * BLOCK_N, M, N);
    }
  }
  // No block exits while the other may still write its stages or arrive on its barriers.
  barrier_cluster_arrive();
  barrier_cluster_wait();
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = with_rows_of_c(asked);
  CUtensorMap a_map, b_map;
  Major a_major, b_major;
  int sms = 0;
  int error = operand_map(gemm.a, false, gemm.in, BLOCK_M, &a_map, &a_major);
  if (error == cudaSuccess)
    error = operand_map(gemm.b, true, gemm.in, BLOCK_N / 2, &b_map, &b_major);
  if (error == cudaSuccess) error = multiprocessors(&sms);
  if (error != cudaSuccess) return error;

  const int M = static_cast<int>(gemm.c.rows), N = static_cast<int>(gemm.c.cols);
  const int K = static_cast<int>(gemm.a.cols);
  const int64_t tiles = ceil_div(M, CLUSTER * BLOCK_M) * ceil_div(N, BLOCK_N);
  // A block's index goes past the last tile by up to a grid.
  if (tiles > INT32_MAX - sms) return cudaErrorInvalidConfiguration;
  const dim3 grid(static_cast<unsigned>(CLUSTER * std::min<int64_t>(tiles, sms / CLUSTER)));
  return with_types_and_majors(gemm, a_major, b_major, [&](auto in, auto out, auto a, auto b) {
    return launch(wgmma_cluster<decltype(in), decltype(out), a, b>, grid, dim3(THREADS),
                  SHARED_BYTES, stream, a_map, b_map, plain_output(gemm.c, gemm.out), M, N, K);
  });
}
