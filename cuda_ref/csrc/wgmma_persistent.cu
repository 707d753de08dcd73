// C[M, N] = A[M, K] B[K, N] by blocks that stay: one to an SM, in pairs that share their loads.
//
// ADDS           a persistent schedule. Each block walks over many tiles, so that the producer
//                fills the ring for the next tile while the consumers still store this one. The two
//                blocks of a cluster work one above the other: each loads half of their common
//                tile of B and multicasts it to both. C leaves through shared memory by TMA stores,
//                under the next tile's multiplies. The next kernel's prologue may start early.
// STILL MISSING  K is never divided: where C has few tiles, SMs idle.
//
// grid       as few clusters as finish in the same number of rounds, in groups of GROUP_M tile rows
// cluster    2 blocks that share the longer side of their tile, B or (wide) A; a single block below
//            five rounds of tiles, where a cluster's launch costs more than it saves
// block      one producer and CONSUMERS consumer warpgroups step through K by BLOCK_K.
//            BLOCK_M x BLOCK_N of C over a ring of 4 x 48 KB, or, where that leaves no more of the
//            last round idle, WIDE_BLOCK_M x WIDE_BLOCK_N over 3 x 56 KB: a fifth fewer bytes for
//            each FLOP, and bytes are power
// warpgroup  half of the block's rows: wgmma 64 x 256 x 16 with 128 accumulators a thread, or two
//            of 64 x 192 x 16 with 192; stored in chunks of 64 rows x 128 bytes
#include "order.cuh"
#include "wgmma_tile.cuh"

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

constexpr int BLOCK_M = 128;
constexpr int BLOCK_N = 256;
constexpr int WIDE_BLOCK_M = 256;
constexpr int WIDE_BLOCK_N = 192;
constexpr int BLOCK_K = 64;
constexpr int GROUP_M = 8;  // of 256 rows each
constexpr int CONSUMERS = 2;
constexpr int THREADS = 128 * (1 + CONSUMERS);
// 168 registers a thread at launch: 128 * (40 + 2 * 232) = 384 * 168.
constexpr int PRODUCER_REGISTERS = 40;
constexpr int CONSUMER_REGISTERS = 232;
static_assert(PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS <= 168 * (1 + CONSUMERS));
constexpr int CHUNK_ROWS = 64;
constexpr uint32_t CHUNK_BYTES = CHUNK_ROWS * 128;

// Sizes of the two tiles; STAGES, and BUFFERS of CHUNK_BYTES for each consumer.
template <bool WIDE>
struct Tiling {
  static constexpr int M = WIDE ? WIDE_BLOCK_M : BLOCK_M, N = WIDE ? WIDE_BLOCK_N : BLOCK_N;
  static constexpr int STAGES = WIDE ? 3 : 4, BUFFERS = WIDE ? 3 : 2;
  static constexpr int MMAS = M / (64 * CONSUMERS);  // of 64 rows, for each consumer
  static constexpr uint32_t A_BYTES = M * BLOCK_K * 2, STAGE_BYTES = A_BYTES + N * BLOCK_K * 2;
  static constexpr uint32_t SHARED_BYTES =
      STAGES * STAGE_BYTES + CONSUMERS * BUFFERS * CHUNK_BYTES + 1024;
  static_assert(SHARED_BYTES <= 232448 - 64, "an SM gives a block 227 KB, barriers included");
};

// Which tiles there are, and how many blocks a cluster has: along N where WIDE, else along M.
template <bool WIDE>
struct Schedule {
  int M, N, K, cluster;

  using T = Tiling<WIDE>;

  __host__ __device__ int rows() const { return (M - 1) / (WIDE ? T::M : T::M * cluster) + 1; }
  __host__ __device__ int cols() const { return (N - 1) / (WIDE ? T::N * cluster : T::N) + 1; }

  // The tile that block `rank` of a cluster computes of the cluster's tile `index`.
  __device__ Tile tile(int index, int rank) const {
    if (cluster == 1) return grouped_tile<GROUP_M * 256 / T::M>(index, rows(), cols());
    const Tile pair = grouped_tile<GROUP_M>(index, rows(), cols());
    return WIDE ? Tile{pair.m, pair.n * 2 + rank} : Tile{pair.m * 2 + rank, pair.n};
  }

  // How often a GPU's SMs go round to visit all tiles.
  int64_t rounds(int sms) const { return ceil_div(int64_t{rows()} * cols(), sms / cluster); }
};

template <bool WIDE, typename In, typename Out, Major A, Major B>
__global__ void __launch_bounds__(THREADS, 1)
    wgmma_persistent(const __grid_constant__ CUtensorMap a_map,
                     const __grid_constant__ CUtensorMap b_map,
                     const __grid_constant__ CUtensorMap c_map, PlainOutput plain,
                     Schedule<WIDE> schedule) {
  using T = Tiling<WIDE>;
  constexpr uint32_t NUM_STAGES = T::STAGES, STAGE_BYTES = T::STAGE_BYTES;
  extern __shared__ uint8_t shared[];
  __shared__ uint64_t barriers[2 * NUM_STAGES];
  const uint32_t ring = (shared_address(shared) + 1023) / 1024 * 1024;
  const uint32_t full = shared_address(barriers), empty = full + 8 * NUM_STAGES;

  const int cluster = schedule.cluster, rank = cluster > 1 ? cluster_ctarank() : 0;
  const int first = blockIdx.x / cluster, step = gridDim.x / cluster;
  const int tiles = schedule.rows() * schedule.cols(), k_tiles = (schedule.K - 1) / BLOCK_K + 1;

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < NUM_STAGES; ++stage) {
      mbarrier_init(full + 8 * stage, 1);
      // One arrival per consumer warp of the cluster: a multicast lands in every block's stage.
      mbarrier_init(empty + 8 * stage, 4 * CONSUMERS * cluster);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  if (cluster > 1) {
    barrier_cluster_arrive();
    barrier_cluster_wait();
  }
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();

  // The same value in all lanes, and known to be so: each role is one branch of whole warpgroups.
  const int warpgroup = __shfl_sync(0xFFFFFFFF, threadIdx.x / 128, 0);
  if (warpgroup == 0) {
    setmaxnreg_dec<PRODUCER_REGISTERS>();
    if (threadIdx.x == 0) {
      prefetch_tensormap(&a_map);
      prefetch_tensormap(&b_map);
      uint32_t stage = 0, phase = 0;
      for (int index = first; index < tiles; index += step) {
        const Tile tile = schedule.tile(index, rank);
        const int m = tile.m * T::M, n = tile.n * T::N;
        for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
          mbarrier_try_wait_parity(empty + 8 * stage, phase ^ 1);
          const uint32_t barrier = full + 8 * stage, a_tile = ring + stage * STAGE_BYTES;
          mbarrier_arrive_expect_tx(barrier, STAGE_BYTES);
          const uint32_t b_tile = a_tile + T::A_BYTES;
          const int k = k_tile * BLOCK_K;
          if constexpr (WIDE) {
            load_tile_multicast<A, T::M>(a_tile, &a_map, barrier, m, k, rank, cluster);
            load_tile<B, T::N>(b_tile, &b_map, barrier, n, k);
          } else {
            load_tile<A, T::M>(a_tile, &a_map, barrier, m, k);
            load_tile_multicast<B, T::N>(b_tile, &b_map, barrier, n, k, rank, cluster);
          }
          if (++stage == NUM_STAGES) stage = 0, phase ^= 1;
        }
      }
    }
    __syncwarp();
  } else {
    setmaxnreg_inc<CONSUMER_REGISTERS>();
    const int consumer = warpgroup - 1;
    const int lane = threadIdx.x % 32;
    const bool stores = threadIdx.x % 128 == 0;  // the thread that owns the TMA stores
    const uint64_t a_desc = wgmma_descriptor(ring + consumer * T::MMAS * BYTES_PER_64_MN);
    const uint64_t b_desc = wgmma_descriptor(ring + T::A_BYTES);
    const uint32_t chunks =
        ring + NUM_STAGES * STAGE_BYTES + consumer * T::BUFFERS * CHUNK_BYTES;
    float d[T::MMAS][T::N / 2];
    uint32_t stage = 0, phase = 0;
    for (int index = first; index < tiles; index += step) {
      const Tile tile = schedule.tile(index, rank);
      const int m = tile.m * T::M + consumer * T::MMAS * 64, n = tile.n * T::N;
      for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
        mbarrier_try_wait_parity(full + 8 * stage, phase);
        const uint32_t offset = stage * (STAGE_BYTES >> 4);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < BLOCK_K / MMA_K; ++k)
#pragma unroll
          for (int i = 0; i < T::MMAS; ++i) {
            const uint64_t a =
                a_desc + offset + i * (BYTES_PER_64_MN >> 4) + k * DESCRIPTOR_PER_MMA_K<A>;
            const uint64_t b = b_desc + offset + k * DESCRIPTOR_PER_MMA_K<B>;
            if constexpr (WIDE)
              wgmma_m64n192k16<In, A, B>(d[i], a, b, k_tile > 0 || k > 0);
            else
              wgmma_m64n256k16<In, A, B>(d[i], a, b, k_tile > 0 || k > 0);
          }
        wgmma_commit_group();
        // One group stays in flight; the one before has read its stage, which goes back.
        wgmma_wait_group<1>();
        if (k_tile > 0 && lane < cluster)
          mbarrier_arrive_cluster(empty + 8 * (stage == 0 ? NUM_STAGES - 1 : stage - 1), lane);
        if (++stage == NUM_STAGES) stage = 0, phase ^= 1;
      }
      wgmma_wait_group<0>();
      if (lane < cluster)
        mbarrier_arrive_cluster(empty + 8 * (stage == 0 ? NUM_STAGES - 1 : stage - 1), lane);

      if (plain.data != nullptr) {
#pragma unroll
        for (int i = 0; i < T::MMAS; ++i)
          store_accumulators<Out>(plain, d[i], m + 64 * i, n, schedule.M, schedule.N);
        continue;
      }
      constexpr int CHUNK_N = 128 / sizeof(Out), CHUNKS = T::N / CHUNK_N;
#pragma unroll
      for (int i = 0; i < T::MMAS * CHUNKS; ++i) {
        const uint32_t chunk = chunks + i % T::BUFFERS * CHUNK_BYTES;
        const int row = i / CHUNKS, col = i % CHUNKS * CHUNK_N;
        // The buffer's last store has been read out before anyone writes it again.
        if (stores) cp_async_bulk_wait_group_read<T::BUFFERS - 1>();
        bar_sync(1 + consumer, 128);
        write_chunk<Out>(chunk, d[row], col);
        fence_proxy_async();
        bar_sync(1 + consumer, 128);
        if (stores) {
          tma_store_2d(&c_map, chunk, n + col, m + row * CHUNK_ROWS);
          cp_async_bulk_commit_group();
        }
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

template <bool WIDE>
int launch_tiling(const Gemm& gemm, const Schedule<WIDE>& schedule, int sms, cudaStream_t stream) {
  CUtensorMap a_map, b_map, c_map{};
  Major a_major, b_major;
  const PlainOutput plain = output_map(gemm.c, gemm.out, CHUNK_ROWS, &c_map);
  int error = operand_map(gemm.a, false, gemm.in, BOX_ROWS<Major::K>, &a_map, &a_major);
  if (error == cudaSuccess)
    error = operand_map(gemm.b, true, gemm.in, WIDE ? WIDE_BLOCK_N : BOX_ROWS<Major::K>, &b_map,
                        &b_major);
  if (error != cudaSuccess) return error;

  // Clusters beyond what the last round needs would wait at its end, and draw power.
  const int64_t clusters =
      ceil_div(int64_t{schedule.rows()} * schedule.cols(), schedule.rounds(sms));
  return with_types_and_majors(gemm, a_major, b_major, [&](auto in, auto out, auto a, auto b) {
    return launch_clusters(wgmma_persistent<WIDE, decltype(in), decltype(out), a, b>,
                           static_cast<unsigned>(clusters), schedule.cluster, dim3(THREADS),
                           Tiling<WIDE>::SHARED_BYTES, stream, a_map, b_map, c_map, plain,
                           schedule);
  });
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = with_rows_of_c(asked);
  int sms = 0;
  const int error = multiprocessors(&sms);
  if (error != cudaSuccess) return error;

  const int M = static_cast<int>(gemm.c.rows), N = static_cast<int>(gemm.c.cols);
  const int K = static_cast<int>(gemm.a.cols);
  const Schedule<false> single{M, N, K, 1}, pair{M, N, K, 2};
  const Schedule<true> wide{M, N, K, 2};
  if (int64_t{single.rows()} * single.cols() > INT32_MAX / 2) return cudaErrorInvalidConfiguration;
  const bool few = single.rounds(sms) < 5 || (single.rows() % 2 == 1 && single.rows() < 16);
  if (MAX_CLUSTER == 1 || few) return launch_tiling(gemm, single, sms, stream);
  // A wide round is 3/2 of the work, at 3 % less power for it.
  const bool pays = wide.rounds(sms) * 150 < pair.rounds(sms) * 103;
  return pays ? launch_tiling(gemm, wide, sms, stream) : launch_tiling(gemm, pair, sms, stream);
}
