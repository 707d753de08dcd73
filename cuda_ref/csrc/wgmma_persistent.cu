// C[M, N] = A[M, K] B[K, N] by blocks that stay: one to an SM, in pairs that share their loads.
// With alpha, beta C_in, bias and an activation, or a batch of them, where that is asked.
//
// ADDS           a persistent schedule. Each block walks over many tiles, so that the producer
//                fills the ring for the next tile while the consumers still store this one. The two
//                blocks of a cluster work side by side: each loads half of their common tile of the
//                longer operand and multicasts it to both. C leaves through shared memory by TMA
//                stores, under the next tile's multiplies. The next kernel's prologue may start
//                early. What is fused happens in registers on the way; C_in is read ahead under the
//                last multiplies. The tiles of a batch are one long schedule.
//                A build has one tile, which the plan chooses (cuda_ref/tiles.py): time is rounds
//                of tiles times their area. With PINGPONG the consumers take turns, a tile each, so
//                that one multiplies while the other fuses and stores.
// STILL MISSING  K is never divided: where C has few tiles, SMs idle.
//
// grid       as few clusters as finish in the same number of rounds, in groups of GROUP_M tile rows
// cluster    1 or 2 blocks along M, along N where BLOCK_M > BLOCK_N; 2 pay from five rounds on
//            (1.6 % at 8192 cubed), and cost the launch of fewer
// block      one producer and CONSUMERS consumer warpgroups step through K by BLOCK_K, over a ring
//            of NUM_STAGES; BLOCK_M x BLOCK_N of C
// warpgroup  MMAS times 64 x BLOCK_N of C: wgmma 64 x BLOCK_N x 16; MMAS x BLOCK_N / 2 accumulators
//            a thread; stored in chunks of 64 rows x 128 bytes, through CHUNK_BUFFERS x 8 KB
#include <algorithm>

#include "wgmma_epilogue.cuh"
#include "wgmma_schedule.cuh"

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

#ifndef TCGEMM_BLOCK_M  // the tile of a build that names none
#define TCGEMM_BLOCK_M 128
#define TCGEMM_BLOCK_N 128
#define TCGEMM_NUM_STAGES 6
#define TCGEMM_PINGPONG 1
#endif

constexpr int BLOCK_M = TCGEMM_BLOCK_M;
constexpr int BLOCK_N = TCGEMM_BLOCK_N;
constexpr int BLOCK_K = 64;
constexpr uint32_t NUM_STAGES = TCGEMM_NUM_STAGES;
constexpr bool PINGPONG = TCGEMM_PINGPONG;
constexpr int GROUP_M = 2048 / BLOCK_M;
constexpr int CONSUMERS = BLOCK_M == 64 ? 1 : BLOCK_M == 192 ? 3 : 2;
constexpr int SHARERS = PINGPONG ? 1 : CONSUMERS;  // warpgroups that share a tile
constexpr int MMAS = BLOCK_M / 64 / SHARERS;
constexpr int THREADS = 128 * (1 + CONSUMERS);
// At launch a thread has 65536 / THREADS registers, 168 with two consumers and 128 with three:
// 40 + 2 * 232 = 3 * 168, 32 + 3 * 160 = 4 * 128. One consumer has enough.
constexpr int PRODUCER_REGISTERS = CONSUMERS == 3 ? 32 : 40;
constexpr int CONSUMER_REGISTERS = CONSUMERS == 3 ? 160 : 232;
constexpr int PANELS = (BLOCK_N - 1) / PANEL + 1;  // of 64 columns of B, the last maybe in part
constexpr int CHUNK_BUFFERS = PANELS == 1 || CONSUMERS == 3 ? 1 : PANELS == 3 ? 3 : 2;
constexpr uint32_t A_BYTES = BLOCK_M * BLOCK_K * 2, STAGE_BYTES = A_BYTES + PANELS * BYTES_PER_64_MN;
constexpr uint32_t SHARED_BYTES =
    NUM_STAGES * STAGE_BYTES + CONSUMERS * CHUNK_BUFFERS * CHUNK_BYTES + 1024;
static_assert(BLOCK_M % (64 * SHARERS) == 0 && BLOCK_N % 16 == 0, "whole panels of A");
static_assert(SHARED_BYTES <= 232448 - 128, "an SM gives a block 227 KB, barriers included");
static_assert(MMAS * BLOCK_N <= 384, "a thread has room for 192 accumulators");

constexpr bool SHARES_A = BLOCK_M > BLOCK_N;  // in a cluster; else B
template <Major MAJOR, int ROWS>
constexpr int BOX = MAJOR == Major::K ? ROWS : 64;  // rows of M or N
template <Major MAJOR>
constexpr int B_ROWS = MAJOR == Major::K ? BLOCK_N : 64 * PANELS;  // that are loaded
constexpr int A_BOX = SHARES_A ? BLOCK_M / 2 : BLOCK_M, B_BOX = SHARES_A ? BLOCK_N : BLOCK_N / 2;
// Steps along K that are brought into the L2 while the kernel before still runs: it pays where a
// launch is a few microseconds.
constexpr int AHEAD = BLOCK_M * BLOCK_N <= 64 * 128 ? NUM_STAGES : 0;
using Tiles = Schedule<BLOCK_M, BLOCK_N, GROUP_M, SHARES_A>;

// What a build is for: the build system compiles one case at a time. By default it is all cases.
template <typename In, typename Out, bool PLAIN>
constexpr bool BUILT =
#ifdef TCGEMM_IN
    PLAIN == TCGEMM_PLAIN &&
    std::is_same_v<Out, float> == (TCGEMM_OUT == static_cast<int>(DType::f32)) &&
    std::is_same_v<In, __half> == (TCGEMM_IN == static_cast<int>(DType::f16));
#else
    true;
#endif

// What the plain product does without.
struct Plain {};
using Fused = Epilogue<float>;

template <typename In, typename Out, Major A, Major B, typename Extra>
__global__ void __launch_bounds__(THREADS, 1)
    wgmma_persistent(const __grid_constant__ CUtensorMap a_map,
                     const __grid_constant__ CUtensorMap b_map,
                     const __grid_constant__ CUtensorMap c_map, PlainOutput plain, Tiles schedule,
                     int k_tiles, int ahead, const __grid_constant__ Extra extra) {
  constexpr bool FUSED = std::is_same_v<Extra, Fused>;
  extern __shared__ uint8_t shared[];
  __shared__ uint64_t barriers[2 * NUM_STAGES + 2];
  const uint32_t ring = (shared_address(shared) + 1023) / 1024 * 1024;
  const uint32_t full = shared_address(barriers), empty = full + 8 * NUM_STAGES;
  const uint32_t turns = empty + 8 * NUM_STAGES;  // of consumers that take them

  const int cluster = schedule.cluster, rank = cluster > 1 ? cluster_ctarank() : 0;
  const int first = blockIdx.x / cluster, step = gridDim.x / cluster;
  const int tiles = schedule.tiles();
  int m, n, z;

  if (threadIdx.x == 0) {
    prefetch_tensormap(&a_map);
    prefetch_tensormap(&b_map);
    for (uint32_t stage = 0; stage < NUM_STAGES; ++stage) {
      mbarrier_init(full + 8 * stage, 1);
      // One arrival per consumer warp of the cluster: a multicast lands in every block's stage.
      mbarrier_init(empty + 8 * stage, 4 * SHARERS * cluster);
    }
    for (int consumer = 0; consumer < 2; ++consumer) mbarrier_init(turns + 8 * consumer, 4);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (cluster > 1) {
    barrier_cluster_arrive();
    barrier_cluster_wait();
  }
  griddepcontrol_launch_dependents();
  if (threadIdx.x == 0 && first < tiles) {
    // While the kernel before ends. It reads nothing, so what that one still writes is no hazard.
    schedule.template locate<FUSED>(first, rank, &m, &n, &z);
    for (int k_tile = 0; k_tile < ahead; ++k_tile) {
      prefetch_tile<A, BLOCK_M, FUSED, BOX<A, A_BOX>>(&a_map, m, k_tile * BLOCK_K,
                                                      z * schedule.a_step);
      prefetch_tile<B, B_ROWS<B>, FUSED, BOX<B, B_BOX>>(&b_map, n, k_tile * BLOCK_K,
                                                        z * schedule.b_step);
    }
  }
  griddepcontrol_wait();

  // The same value in all lanes, and known to be so: each role is one branch of whole warpgroups.
  const int warpgroup = __shfl_sync(0xFFFFFFFF, threadIdx.x / 128, 0);
  uint32_t stage = 0, phase = 0;
  const auto advance = [&](uint32_t stages) {
    stage += stages;
    phase ^= stage / NUM_STAGES & 1;
    stage %= NUM_STAGES;
  };
  if (warpgroup == 0) {
    if constexpr (CONSUMERS > 1) setmaxnreg_dec<PRODUCER_REGISTERS>();
    if (threadIdx.x == 0) {
      for (int index = first; index < tiles; index += step) {
        schedule.template locate<FUSED>(index, rank, &m, &n, &z);
        for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
          mbarrier_try_wait_parity(empty + 8 * stage, phase ^ 1);
          const uint32_t barrier = full + 8 * stage, a_tile = ring + stage * STAGE_BYTES;
          mbarrier_arrive_expect_tx(barrier, A_BYTES + B_ROWS<B> * 128);
          load_tile_multicast<A, BLOCK_M, FUSED, BOX<A, A_BOX>>(
              a_tile, &a_map, barrier, m, k_tile * BLOCK_K, SHARES_A ? rank : 0,
              SHARES_A ? cluster : 1, z * schedule.a_step);
          load_tile_multicast<B, B_ROWS<B>, FUSED, BOX<B, B_BOX>>(
              a_tile + A_BYTES, &b_map, barrier, n, k_tile * BLOCK_K, SHARES_A ? 0 : rank,
              SHARES_A ? 1 : cluster, z * schedule.b_step);
          if (++stage == NUM_STAGES) stage = 0, phase ^= 1;
        }
      }
    }
    __syncwarp();
  } else {
    if constexpr (CONSUMERS > 1) setmaxnreg_inc<CONSUMER_REGISTERS>();
    const int consumer = warpgroup - 1, part = PINGPONG ? 0 : consumer;
    const int lane = threadIdx.x % 32;
    const bool stores = threadIdx.x % 128 == 0;  // the thread that owns the TMA stores
    const uint64_t a_desc = wgmma_descriptor(ring + part * MMAS * BYTES_PER_64_MN);
    const uint64_t b_desc = wgmma_descriptor(ring + A_BYTES);
    const uint32_t chunks =
        ring + NUM_STAGES * STAGE_BYTES + consumer * CHUNK_BUFFERS * CHUNK_BYTES;
    float d[MMAS][BLOCK_N / 2];
    // Taking turns, consumer 0 has tiles 0, 2, ... of the block and skips the other's stages.
    uint32_t turn_phase = consumer == 0;
    if constexpr (PINGPONG) advance(consumer * k_tiles);
    for (int index = first + (PINGPONG ? consumer * step : 0); index < tiles;
         index += PINGPONG ? 2 * step : step) {
      schedule.template locate<FUSED>(index, rank, &m, &n, &z);
      m += part * MMAS * 64;
      // Until its turn a stage may be two phases behind, whose parity is that of the one it wants.
      if constexpr (PINGPONG) mbarrier_try_wait_parity(turns + 8 * consumer, turn_phase);
      for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
        mbarrier_try_wait_parity(full + 8 * stage, phase);
        const uint32_t offset = stage * (STAGE_BYTES >> 4);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < BLOCK_K / MMA_K; ++k)
#pragma unroll
          for (int i = 0; i < MMAS; ++i)
            wgmma<BLOCK_N, In, A, B>(
                d[i],
                a_desc + offset + i * (BYTES_PER_64_MN >> 4) + k * DESCRIPTOR_PER_MMA_K<A>,
                b_desc + offset + k * DESCRIPTOR_PER_MMA_K<B>, k_tile > 0 || k > 0);
        wgmma_commit_group();
        // One group stays in flight; the one before has read its stage, which goes back.
        wgmma_wait_group<1>();
        if (k_tile > 0 && lane < cluster)
          mbarrier_arrive_cluster(empty + 8 * (stage == 0 ? NUM_STAGES - 1 : stage - 1), lane);
        if (++stage == NUM_STAGES) stage = 0, phase ^= 1;
      }
      if constexpr (PINGPONG) {
        if (lane == 0) mbarrier_arrive(turns + 8 * (1 - consumer));
        turn_phase ^= 1;
      }
      RowTerms<Out, float> rows;
      Ahead<Out> ahead;
      const auto read_ahead = [&](int row) {
        if constexpr (FUSED) {
          rows.load(extra, row, n, BLOCK_N, schedule.M, schedule.N);
          ahead.load(extra, rows, row, n, schedule.M, schedule.N, z);
        }
      };
      read_ahead(m);
      wgmma_wait_group<0>();
      if (lane < cluster)
        mbarrier_arrive_cluster(empty + 8 * (stage == 0 ? NUM_STAGES - 1 : stage - 1), lane);
      if constexpr (PINGPONG) advance(k_tiles);

#pragma unroll
      for (int i = 0; i < MMAS; ++i) {
        const int row = m + 64 * i;
        if (i > 0) read_ahead(row);
        if constexpr (FUSED)
          finish_chunks(extra, rows, ahead, d[i], row, n, schedule.M, schedule.N, z);
        if (plain.data != nullptr)
          store_accumulators<Out>(plain.at(z, sizeof(Out)), d[i], row, n, schedule.M, schedule.N);
        else
          store_chunks<Out, CHUNK_BUFFERS, FUSED>(&c_map, chunks, 1 + consumer, d[i], row, n, z);
      }
    }
    if (stores) cp_async_bulk_wait_group_read<0>();
  }
  // No block leaves while the other may still write its stages or arrive on its barriers.
  if (cluster > 1) {
    barrier_cluster_arrive();
    barrier_cluster_wait();
  }
}

template <typename Extra>
int launch_extra(const Gemm& gemm, const Extra& extra, cudaStream_t stream) {
  constexpr bool PLAIN = std::is_same_v<Extra, Plain>;
  const int64_t batch = PLAIN ? 0 : gemm.batch;  // 0: tensor maps of two dimensions
  CUtensorMap a_map, b_map, c_map{};
  Major a_major, b_major;
  Tiles schedule;
  unsigned clusters;
  int error = operand_map(gemm.a, false, gemm.in, A_BOX, &a_map, &a_major, batch);
  if (error == cudaSuccess)
    error = operand_map(gemm.b, true, gemm.in, B_BOX, &b_map, &b_major, batch);
  if (error == cudaSuccess) error = schedule_of(gemm, &schedule, &clusters);
  if (error != cudaSuccess) return error;
  const PlainOutput plain = output_map(gemm.c, gemm.out, CHUNK_ROWS, &c_map, batch);
  const int k_tiles = static_cast<int>(ceil_div(gemm.a.cols, BLOCK_K));
  return with_types_and_majors(gemm, a_major, b_major, [&](auto in, auto out, auto a, auto b) {
    using In = decltype(in);
    using Out = decltype(out);
    if constexpr (BUILT<In, Out, PLAIN>)
      return launch_clusters(wgmma_persistent<In, Out, a, b, Extra>, clusters, schedule.cluster,
                             dim3(THREADS), SHARED_BYTES, stream, a_map, b_map, c_map, plain,
                             schedule, k_tiles, std::min(k_tiles, AHEAD), extra);
    return static_cast<int>(cudaErrorNotSupported);
  });
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = with_rows_of_c(asked);
  if (is_plain(gemm) && gemm.batch == 1) return launch_extra(gemm, Plain{}, stream);
  return launch_extra(gemm, epilogue_of<float>(gemm), stream);
}
