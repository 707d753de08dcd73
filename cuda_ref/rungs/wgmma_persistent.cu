// C[M, N] = A[M, K] B[K, N] by blocks that stay: one to an SM, in pairs that share their loads.
// With alpha, beta C_in, bias and an activation, or a batch of them, where that is asked.
//
// ADDS           what production asks of the loop of wgmma_epilogue.cu. A build has one tile
//                (wgmma_persistent_build.cuh), which the plan chooses (wgmma_persistent.py): in
//                the main, time is waves of tiles times their area. With PINGPONG the
//                consumers take alternate tiles: one multiplies while the other stores. Blocks pair
//                where that pays, and share the longer operand. What is fused happens in registers
//                on C's way, in a build that knows what; C_in comes by TMA, into the buffers of C,
//                under the multiplies (sm90/epilogue_tma.cuh). The tiles of a batch are one long
//                schedule. The next kernel's prologue may start while this one runs (PDL), and
//                prefetches its first tiles into the L2.
// STILL MISSING  K is never divided: where C has few tiles, SMs idle.
//
// grid       as few clusters as finish in the same number of waves, in groups of GROUP_M tile rows,
//            from the last tile to the first (sm90/scheduler.cuh)
// cluster    1 or 2 blocks along M, along N where they share A (sm90/scheduler.cuh)
// block      CONSUMERS consumer warpgroups and a producer step through K by BLOCK_K, over a ring of
//            NUM_STAGES; BLOCK_M x BLOCK_N of C
// warpgroup  MMAS times 64 x BLOCK_N of C: wgmma 64 x BLOCK_N x 16; MMAS x BLOCK_N / 2 accumulators
//            a thread; stored in chunks of 64 rows x 128 bytes, through CHUNK_BUFFERS x 8 KB, by
//            TMA; by its threads where TMA cannot, and of a short K where rows of C split sectors
#include <algorithm>

#include "wgmma_persistent_build.cuh"

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

// A panel has `readers` blocks that will read it: this is number `share`, and prefetches its share
// of the first `steps` steps into the L2. By a warp.
template <Major MAJOR, int ROWS, bool BATCHED, int BOX>
__device__ __forceinline__ void prefetch_l2(const CUtensorMap* map, int mn, int share, int readers,
                                            int steps, int batch) {
  for (int step = share + readers * (threadIdx.x % 32); step < steps; step += 32 * readers)
    prefetch_tile<MAJOR, ROWS, BATCHED, BOX>(map, mn, step * BLOCK_K, batch);
}

template <typename In, typename Out, Major A, Major B, typename Extra>
__global__ void __launch_bounds__(THREADS, 1)
    wgmma_persistent(const __grid_constant__ CUtensorMap a_map,
                     const __grid_constant__ CUtensorMap b_map,
                     const __grid_constant__ CUtensorMap c_map, Output plain, Tiles schedule,
                     int k_tiles, int prefetched, const __grid_constant__ Extra extra) {
  constexpr bool FUSED = std::is_same_v<Extra, Fused>, BATCHED = Extra::BATCHED;
  extern __shared__ __align__(1024) uint8_t shared[];  // panels start at multiples of 1024
  const uint32_t ring = shared_address(shared);
  const uint32_t full = ring + BARRIERS_AT, empty = full + 8 * NUM_STAGES;
  const uint32_t pingpong = empty + 8 * NUM_STAGES;  // whose consumer may multiply
  const uint32_t arrivals = pingpong + 8 * 2;     // of C_in, one for each buffer

  const int cluster = schedule.cluster, rank = cluster > 1 ? cluster_ctarank() : 0;
  // A cluster has one block or two.
  const int first = blockIdx.x >> (cluster - 1), step = gridDim.x >> (cluster - 1);
  const int tiles = schedule.tiles();
  int m, n, z;

  uint32_t stage = 0, phase = 0;
  const auto advance = [&](uint32_t stages) {
    stage += stages;
    phase ^= stage / NUM_STAGES & 1;
    stage %= NUM_STAGES;
  };
  const auto load_step = [&](int k_tile) {
    const uint32_t barrier = full + 8 * stage, a_tile = ring + stage * STAGE_BYTES;
    mbarrier_arrive_expect_tx(barrier, A_BYTES + B_ROWS<B> * 128);
    load_tile_multicast<A, BLOCK_M, BATCHED, BOX<A, A_BOX>>(
        a_tile, &a_map, barrier, m, k_tile * BLOCK_K, SHARES_A ? rank : 0, SHARES_A ? cluster : 1,
        z * schedule.a_step);
    load_tile_multicast<B, B_ROWS<B>, BATCHED, BOX<B, B_BOX>>(
        a_tile + A_BYTES, &b_map, barrier, n, k_tile * BLOCK_K, SHARES_A ? 0 : rank,
        SHARES_A ? 1 : cluster, z * schedule.b_step);
  };
  // A block waits for its first loads above all. So three warps begin side by side, and the one
  // that produces loads a few steps before they meet: these need no stage that was read, and no
  // pair.
  const int ahead = cluster > 1 || first >= tiles ? 0 : min(k_tiles, AT_ONCE);
  if (L2_PREFETCH == 0) griddepcontrol_launch_dependents();
  if (threadIdx.x == 128 * CONSUMERS) {
    for (int i = 0; i < NUM_STAGES; ++i) mbarrier_init(full + 8 * i, 1);
    fence_mbarrier_init();
    if (ahead > 0) {
      schedule.template locate<BATCHED>(first, rank, &m, &n, &z);
      griddepcontrol_wait();
    }
#pragma unroll 1
    for (; stage < ahead; ++stage) load_step(stage);
    stage = 0;
  } else if (threadIdx.x == 0) {
    // One arrival per consumer warp of the cluster: a multicast lands in every block's stage.
    for (int i = 0; i < NUM_STAGES; ++i)
      mbarrier_init(empty + 8 * i, 4 * WARPGROUPS_OF_A_TILE * cluster);
    for (int consumer = 0; consumer < 2; ++consumer) mbarrier_init(pingpong + 8 * consumer, 4);
    if constexpr (FUSED)
      for (int i = 0; i < CONSUMERS * CHUNK_BUFFERS; ++i) mbarrier_init(arrivals + 8 * i, 1);
    fence_mbarrier_init();
  } else if (threadIdx.x / 32 == 1) {
    if (threadIdx.x == 32) prefetch_tensormaps(a_map, b_map, c_map, plain);
    if (L2_PREFETCH > 0 && first < tiles) {
      // It reads nothing, so what the kernel before still writes is no hazard. Readers of a panel
      // are counted from the last tile, where the first wave is: where there are more waves, the
      // first tiles have no block yet. A block of a pair may lie past the last.
      schedule.template locate<BATCHED>(first, rank, &m, &n, &z);
      const int last_m = (schedule.M - 1) / BLOCK_M, last_n = (schedule.N - 1) / BLOCK_N;
      prefetch_l2<A, BLOCK_M, BATCHED, BOX<A, A_BOX>>(&a_map, m, max(last_n - n / BLOCK_N, 0),
                                                  last_n + 1, prefetched, z * schedule.a_step);
      prefetch_l2<B, B_ROWS<B>, BATCHED, BOX<B, B_BOX>>(&b_map, n, max(last_m - m / BLOCK_M, 0),
                                                    last_m + 1, prefetched, z * schedule.b_step);
    }
  }
  __syncthreads();
  if (cluster > 1) {
    barrier_cluster_arrive();
    barrier_cluster_wait();
  }
  griddepcontrol_wait();
  // Not before, or several small kernels wait beside each other: 64 cubed 1.92 us for 1.72.
  if (L2_PREFETCH > 0) griddepcontrol_launch_dependents();

  // The same value in all lanes, and known to be so: each role is one branch of whole warpgroups.
  const int warpgroup = __shfl_sync(0xFFFFFFFF, threadIdx.x / 128, 0);
  if (warpgroup == CONSUMERS) {
    if constexpr (MOVES_REGISTERS) setmaxnreg_dec<PRODUCER_REGISTERS>();
    // Written so, the loop is kept in uniform registers (docs/lab/cuda_wgmma_types.md).
    const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0) - 4 * CONSUMERS;
    if (threadIdx.x % 32 == 0 && warp < 1) {
      advance(ahead);
      int loaded = ahead;
      for (int index = first + warp; index < tiles; index += step) {
        schedule.template locate<BATCHED>(index, rank, &m, &n, &z);
        for (int k_tile = loaded; k_tile < k_tiles; ++k_tile) {
          mbarrier_try_wait_parity(empty + 8 * stage, phase ^ 1);
          load_step(k_tile);
          if (++stage == NUM_STAGES) stage = 0, phase ^= 1;
        }
        loaded = 0;
      }
    }
    __syncwarp();
  } else {
    if constexpr (MOVES_REGISTERS) setmaxnreg_inc<CONSUMER_REGISTERS>();
    const int consumer = warpgroup, part = PINGPONG ? 0 : consumer;
    const int lane = threadIdx.x % 32;
    const bool stores = threadIdx.x % 128 == 0;  // the thread that owns the TMA stores
    const uint64_t a_desc = wgmma_descriptor(ring + part * MMAS * BYTES_PER_64_MN);
    const uint64_t b_desc = wgmma_descriptor(ring + A_BYTES);
    uint8_t* const chunks = shared + CHUNKS_AT + consumer * CHUNK_BUFFERS * CHUNK_BYTES;
    TmaEpilogue<Out, Extra, MMAS, BLOCK_N, CHUNK_BUFFERS, (IN_ROWS_STEPS > 0)> tile{
        extra, chunks, arrivals + consumer * CHUNK_BUFFERS * 8, 1u + consumer, stores};
    float d[MMAS][BLOCK_N / 2];
    // In ping-pong, consumer 0 has tiles 0, 2, ... of the block and skips the other's stages.
    uint32_t pingpong_phase = consumer == 0;
    if constexpr (PINGPONG) advance(consumer * k_tiles);
    for (int index = first + (PINGPONG ? consumer * step : 0); index < tiles;
         index += PINGPONG ? 2 * step : step) {
      // Until this consumer may multiply, a stage may be two phases behind, and such a one has the
      // parity of the one that it waits for.
      if constexpr (PINGPONG) mbarrier_try_wait_parity(pingpong + 8 * consumer, pingpong_phase);
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
        if constexpr (FUSED) {
          if (k_tile == min(2, k_tiles - 1)) {
            tile.place(schedule, index, rank, part * MMAS * 64);
            tile.begin(schedule.M, schedule.N);
          }
        }
        // One group stays in flight; the one before has read its stage, which goes back.
        wgmma_wait_group<1>();
        if (k_tile > 0 && lane < cluster)
          mbarrier_arrive_cluster(empty + 8 * (stage == 0 ? NUM_STAGES - 1 : stage - 1), lane);
        if (++stage == NUM_STAGES) stage = 0, phase ^= 1;
      }
      if constexpr (PINGPONG) {
        if (lane == 0) mbarrier_arrive(pingpong + 8 * (1 - consumer));
        pingpong_phase ^= 1;
      }
      // In the shadow of the last multiplies.
      if constexpr (!FUSED) tile.place(schedule, index, rank, part * MMAS * 64);
      wgmma_wait_group<0>();
      if (lane < cluster)
        mbarrier_arrive_cluster(empty + 8 * (stage == 0 ? NUM_STAGES - 1 : stage - 1), lane);
      if constexpr (PINGPONG) advance(k_tiles);

      tile.store(&c_map, plain, d, schedule.M, schedule.N);
    }
    if (stores) cp_async_bulk_wait_group_read<0>();
  }
  // No block exits while the other may still write its stages or arrive on its barriers.
  if (cluster > 1) {
    barrier_cluster_arrive();
    barrier_cluster_wait();
  }
}

template <typename Extra>
int launch_extra(const Gemm& gemm, const Extra& extra, cudaStream_t stream) {
  constexpr bool PLAIN = std::is_same_v<Extra, Plain>;
  if (!PLAIN && !does_all_of(gemm)) return cudaErrorNotSupported;
  const int64_t batch = Extra::BATCHED ? gemm.batch : 0;  // 0: tensor maps of two dimensions
  CUtensorMap a_map, b_map, c_map{};
  Major a_major, b_major;
  Tiles schedule;
  unsigned clusters;
  int error = operand_map(gemm.a, false, gemm.in, A_BOX, &a_map, &a_major, batch);
  if (error == cudaSuccess)
    error = operand_map(gemm.b, true, gemm.in, B_BOX, &b_map, &b_major, batch);
  const int k_tiles = static_cast<int>(ceil_div(gemm.a.cols, BLOCK_K));
  Output plain = output_of(PLAIN && k_tiles <= IN_ROWS_STEPS, gemm.c, gemm.out, &c_map, batch);
  plain.overlap = PLAIN && plain.odd && k_tiles <= OVERLAP_STEPS;
  if (error == cudaSuccess)
    error = schedule_of(gemm, &schedule, &clusters, plain.overlap ? UNIT_OVERLAP : 0);
  if (error != cudaSuccess) return error;
  return with_types_and_majors(gemm, a_major, b_major, [&](auto in, auto out, auto a, auto b) {
    using In = decltype(in);
    using Out = decltype(out);
    if constexpr (BUILT<In, Out, PLAIN>)
      return launch_clusters(wgmma_persistent<In, Out, a, b, Extra>, clusters, schedule.cluster,
                             dim3(THREADS), SHARED_BYTES, stream, a_map, b_map, c_map, plain,
                             schedule, k_tiles, std::min(k_tiles, L2_PREFETCH), extra);
    return static_cast<int>(cudaErrorNotSupported);
  });
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = with_rows_of_c(asked);
  if (is_plain(gemm) && gemm.batch == 1) return launch_extra(gemm, Plain{}, stream);
  return launch_extra(gemm, fused_of(gemm), stream);
}
