// C[M, N] = A[M, K] B[K, N] on several GPUs, whose communication passes under the product.
//
// ADDS           peers to the loop of wgmma_persistent.cu (sm90/peers.cuh).
//                gather: A's rows lie on all ranks. The producer loads its own where they lie; before
//                the first tile of a part of a peer's rows it waits for the part's flag, at system
//                scope, and fences, since TMA reads by another proxy. C is all of the product.
//                scatter: A and B are a rank's part of K. A tile of another owner goes to its slot
//                by TMA, while the next one is multiplied, and then its flag (sm90/owners.cuh). Own
//                tiles come last, or among them: their sums get the peers', in the order of ranks.
// STILL MISSING  own sums that get the peers' while the next tile is multiplied.
//
// grid       at most one block an SM, all of them there at once: they wait for blocks of peers. In
//            pairs, where they are asked for, two blocks share their B by multicast
// block      CONSUMERS consumer warpgroups and a producer step through K by BLOCK_K, over a ring of
//            NUM_STAGES; BLOCK_M x BLOCK_N of C, one tile at a time or, with PINGPONG, two
// warpgroup  as in wgmma_persistent.cu
#include "sm90/overlap_launch.cuh"
#include "sm90/owners.cuh"
#include "wgmma_overlap_build.cuh"

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

// C of this rank: all rows to gather, its own to scatter.
template <typename In, typename Out, Major B, typename Extra, bool SCATTERS>
__global__ void __launch_bounds__(OVERLAP_THREADS, 1)
    wgmma_overlap(const __grid_constant__ CUtensorMap own_map,
                  const __grid_constant__ CUtensorMap a_map,
                  const __grid_constant__ CUtensorMap b_map,
                  const __grid_constant__ CUtensorMap c_map, PlainOutput plain, bool by_tma, int N,
                  RankOrder<BLOCK_M, GROUP_M, SCATTERS> order, int tiles, int k_tiles,
                  const __grid_constant__ Peers peers,
                  const __grid_constant__ Extra extra) {
  constexpr bool FUSED = std::is_same_v<Extra, Fused>;
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t ring = shared_address(shared);
  const uint32_t full = ring + BARRIERS_AT, empty = full + 8 * NUM_STAGES;
  const uint32_t pingpong = empty + 8 * NUM_STAGES;
  const uint32_t arrivals = pingpong + 8 * 2, begun = ring + BEGUN_AT;
  const int cluster = peers.cluster, rank = cluster > 1 ? cluster_ctarank() : 0;
  const int begin = blockIdx.x / cluster, step = gridDim.x / cluster;

  if (threadIdx.x == 0) {
    for (uint32_t stage = 0; stage < NUM_STAGES; ++stage) {
      mbarrier_init(full + 8 * stage, 1);
      mbarrier_init(empty + 8 * stage, 4 * WARPGROUPS_OF_A_TILE * cluster);
    }
    for (int consumer = 0; consumer < 2; ++consumer) mbarrier_init(pingpong + 8 * consumer, 4);
    for (int i = 0; i < CONSUMERS * CHUNK_BUFFERS; ++i) mbarrier_init(arrivals + 8 * i, 1);
    mbarrier_init(begun, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  sync_cluster(cluster);
  griddepcontrol_wait();
  const int32_t now = *peers.epoch + peers.begins;
  if (peers.begins) __syncthreads();  // all have read it

  const int warpgroup = __shfl_sync(0xFFFFFFFF, threadIdx.x / 128, 0);
  uint32_t stage = 0, phase = 0;
  const auto advance = [&](uint32_t stages) {
    stage += stages;
    phase ^= stage / NUM_STAGES & 1;
    stage %= NUM_STAGES;
  };
  if (warpgroup == CONSUMERS) {
    if constexpr (MOVES_REGISTERS) setmaxnreg_dec<PRODUCER_REGISTERS>();
    const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0) - 4 * CONSUMERS;
    if (threadIdx.x % 32 == 0 && warp < 1) {
      Arrivals arrived;
      for (int index = begin + warp; index < tiles; index += step) {
        const auto spot = order.locate(index, rank, peers);
        const bool is_own = arrived.wait<SCATTERS>(spot, peers, now);
        const CUtensorMap* const map = is_own ? &own_map : &a_map;
        const int m = is_own ? spot.m : spot.owner * peers.chunk + spot.m;
        for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
          mbarrier_try_wait_parity(empty + 8 * stage, phase ^ 1);
          const uint32_t barrier = full + 8 * stage, a_tile = ring + stage * STAGE_BYTES;
          mbarrier_arrive_expect_tx(barrier, A_BYTES + B_ROWS<B> * 128);
          load_tile<Major::K, BLOCK_M>(a_tile, map, barrier, m, k_tile * BLOCK_K);
          const int n = spot.tile_n * BLOCK_N, k = k_tile * BLOCK_K;
          if constexpr (HAS_PAIRS)
            load_tile_multicast<B, B_ROWS<B>, false, BOX<B, B_WIDTH>>(
                a_tile + A_BYTES, &b_map, barrier, n, k, rank, cluster);
          else
            load_tile<B, B_ROWS<B>>(a_tile + A_BYTES, &b_map, barrier, n, k);
          if (++stage == NUM_STAGES) stage = 0, phase ^= 1;
        }
      }
    }
    if (warp == 1) {
      const int lane = threadIdx.x % 32;
      if (peers.begins) begin_call(peers, now, lane);
      if (lane == 0) mbarrier_arrive(begun);
    }
    __syncwarp();
  } else {
    if constexpr (MOVES_REGISTERS) setmaxnreg_inc<CONSUMER_REGISTERS>();
    const int consumer = warpgroup, part = PINGPONG ? 0 : consumer;
    const int lane = threadIdx.x % 32;
    const uint32_t group = 1u + consumer;  // the barrier of the warpgroup
    const bool stores = threadIdx.x % 128 == 0;
    const uint64_t a_desc = wgmma_descriptor(ring + part * MMAS * BYTES_PER_64_MN);
    const uint64_t b_desc = wgmma_descriptor(ring + A_BYTES);
    uint8_t* const chunks = shared + CHUNKS_AT + consumer * CHUNK_BUFFERS * CHUNK_BYTES;
    TmaEpilogue<Out, Extra, MMAS, BLOCK_N, CHUNK_BUFFERS> tile{
        extra, chunks, arrivals + consumer * CHUNK_BUFFERS * 8, group, stores};
    float d[MMAS][BLOCK_N / 2];
    uint32_t pingpong_phase = consumer == 0;
    Sent<RankSpot<BLOCK_M>> sent;
    const int parts = parts_of_a_rank<BLOCK_M, WARPGROUPS_OF_A_TILE>(peers, order.cols);
    if constexpr (PINGPONG) advance(consumer * k_tiles);
    for (int index = begin + (PINGPONG ? consumer * step : 0); index < tiles;
         index += PINGPONG ? 2 * step : step) {
      const auto spot = order.locate(index, rank, peers);
      const int m = spot.m + part * MMAS * 64;  // among the owner's rows
      const int flag = spot.number(order.cols) * WARPGROUPS_OF_A_TILE + part;
      tile.m = SCATTERS ? m : spot.owner * peers.chunk + m;
      tile.n = spot.tile_n * BLOCK_N;
      if constexpr (PINGPONG) mbarrier_try_wait_parity(pingpong + 8 * consumer, pingpong_phase);
      for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
        mbarrier_try_wait_parity(full + 8 * stage, phase);
        const uint32_t offset = stage * (STAGE_BYTES >> 4);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < BLOCK_K / MMA_K; ++k)
#pragma unroll
          for (int i = 0; i < MMAS; ++i)
            wgmma<BLOCK_N, In, Major::K, B>(
                d[i],
                a_desc + offset + i * (BYTES_PER_64_MN >> 4) + k * DESCRIPTOR_PER_MMA_K<Major::K>,
                b_desc + offset + k * DESCRIPTOR_PER_MMA_K<B>, k_tile > 0 || k > 0);
        wgmma_commit_group();
        if constexpr (FUSED) {
          if (!SCATTERS && k_tile == min(2, k_tiles - 1)) tile.begin(spot.rows, N);
        }
        wgmma_wait_group<1>();
        if (k_tile > 0 && lane < cluster)
          mbarrier_arrive_cluster(empty + 8 * (stage == 0 ? NUM_STAGES - 1 : stage - 1), lane);
        if (++stage == NUM_STAGES) stage = 0, phase ^= 1;
      }
      if constexpr (PINGPONG) {
        if (lane == 0) mbarrier_arrive(pingpong + 8 * (1 - consumer));
        pingpong_phase ^= 1;
      }
      wgmma_wait_group<0>();
      if (lane < cluster)
        mbarrier_arrive_cluster(empty + 8 * (stage == 0 ? NUM_STAGES - 1 : stage - 1), lane);
      if constexpr (PINGPONG) advance(k_tiles);

      if (stores && !spot.is_there()) sent.tell(peers, now);  // the owner of the one before may wait
      if (!spot.is_there()) continue;
      if constexpr (!SCATTERS) {
        // TMA would also store the rows of the next rank, of which this tile knows nothing.
        const bool is_whole = spot.m + BLOCK_M <= spot.rows;
        Output to{plain, false};
        if (is_whole && by_tma) to.data = nullptr;
        // Plain stores commit no group, by which the epilogue counts the buffers still being read.
        else if (stores) cp_async_bulk_wait_group_read<0>();
        tile.store(&c_map, to, d, spot.owner * peers.chunk + spot.rows, N);
        if (stores) stamp<SCATTERS>(spot, peers, Stamp::stored);
      } else if (spot.owner != peers.rank) {
        if (stores) {
          if (sent.flag == nullptr) {  // as before the first one
            mbarrier_try_wait_parity(begun, 0);
            fence_proxy_async_global();
          }
          sent.tell(peers, now);
          cp_async_bulk_wait_group_read<0>();  // of an own tile
        }
        bar_sync(group, 128);  // the tile before has left the buffers
        send_tile<Out, CHUNK_BUFFERS>(
            peers.slots[spot.owner] + (int64_t{peers.rank} * parts + flag) * PART_BYTES,
            shared_address(chunks), group, stores, d, m, tile.n, spot.rows, N);
        sent.keep(spot, peers, flag);
      } else {
        if (stores) {
          sent.tell(peers, now);  // before a wait: the owner waits as well
          wait_for_tiles<SCATTERS>(spot, peers, flag, now);
        }
        bar_sync(group, 128);
        add_peers<Out>(d, peers, flag, parts);
        if constexpr (FUSED) tile.begin(spot.rows, N);
        Output to{plain, false};
        if (by_tma) to.data = nullptr;
        tile.store(&c_map, to, d, spot.rows, N);
        if (stores) stamp<SCATTERS>(spot, peers, Stamp::stored);
      }
    }
    if (stores) {
      sent.tell(peers, now);
      cp_async_bulk_wait_group_read<0>();
    }
  }
  // No block exits while the other may still write its stages or arrive on its barriers.
  sync_cluster(cluster);
}

template <bool SCATTERS, typename Extra>
int launch_extra(const Gemm& gemm, const Peers& peers, const Extra& extra, cudaStream_t stream) {
  constexpr bool PLAIN = std::is_same_v<Extra, Plain>;
  if (!PLAIN && !does_all_of(gemm) || peers.cluster > 1 && !HAS_PAIRS) return cudaErrorNotSupported;
  OverlapMaps maps;
  int error = maps.make<SCATTERS, Extra>(gemm, peers, BLOCK_M, B_WIDTH);
  const int N = static_cast<int>(gemm.b.cols);
  const int64_t M = SCATTERS ? gemm.a.rows : gemm.c.rows;
  const bool alike = M == int64_t{peers.chunk} * peers.world;  // ranks have as many rows
  const RankOrder<BLOCK_M, GROUP_M, SCATTERS> order{M, static_cast<int>(ceil_div(N, BLOCK_N)),
                                                    alike ? peers.turn : 0,
                                                    BLOCK_M * peers.cluster};
  const int64_t tiles = order.tiles(peers);
  unsigned clusters = 0;
  if (error == cudaSuccess) error = clusters_of(tiles, peers, &clusters);
  if (error != cudaSuccess) return error;
  const int k_tiles = static_cast<int>(ceil_div(gemm.a.cols, BLOCK_K));
  return with_types(gemm, [&](auto in, auto out) {
    using In = decltype(in);
    using Out = decltype(out);
    const auto start = [&](auto kernel) {
      return launch_clusters(kernel, clusters, peers.cluster, dim3(OVERLAP_THREADS), OVERLAP_BYTES,
                             stream, maps.own, maps.a, maps.b, maps.c, plain_output(gemm.c, gemm.out),
                             maps.by_tma, N, order, static_cast<int>(tiles), k_tiles, peers, extra);
    };
    if constexpr (BUILT<In, Out, PLAIN> && sizeof(Out) == 2)
      return maps.b_major == Major::K ? start(wgmma_overlap<In, Out, Major::K, Extra, SCATTERS>)
                                      : start(wgmma_overlap<In, Out, Major::MN, Extra, SCATTERS>);
    return static_cast<int>(cudaErrorNotSupported);
  });
}

template <bool SCATTERS>
int launch_product(const Gemm& gemm, const Peers& peers, cudaStream_t stream) {
  if (is_plain(gemm)) return launch_extra<SCATTERS>(gemm, peers, Plain{}, stream);
  return launch_extra<SCATTERS>(gemm, peers, fused_of(gemm), stream);
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {
  const Peers peers = peers_of_call;
  switch (peers.step) {
    case Step::enter: return launch(enter, dim3(1), dim3(32), 0, stream, peers);
    case Step::gather: return launch_product<false>(gemm, peers, stream);
    default: return launch_product<true>(gemm, peers, stream);
  }
}
