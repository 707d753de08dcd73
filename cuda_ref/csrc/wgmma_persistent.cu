// C[M, N] = epilogue(alpha A[M, K] B[K, N] + beta C_in + bias), or a batch of them, by blocks that
// stay: one to an SM, in pairs that share their loads.
//
// ADDS           a persistent schedule. Each block walks over many tiles, so that the producer
//                fills the ring for the next tile while the consumers still store this one. The two
//                blocks of a cluster work one above the other: each loads half of their common
//                tile of B and multicasts it to both. C leaves through shared memory by TMA stores,
//                under the next tile's multiplies. The next kernel's prologue may start early.
//                What is fused happens in registers on the way; C_in is read ahead under the last
//                multiplies. The tiles of a batch are one long schedule.
// STILL MISSING  K is never divided: where C has few tiles, SMs idle.
//
// grid       as few clusters as finish in the same number of rounds, in groups of GROUP_M tile rows
// cluster    1 or 2 blocks along M; 2 pay from five rounds on (1.6 % at 8192 cubed), and cost the
//            launch of fewer
// block      one producer and CONSUMERS consumer warpgroups step through K by BLOCK_K, over a ring
//            of NUM_STAGES x 48 KB; BLOCK_M x BLOCK_N of C
// warpgroup  64 x 256 of C: wgmma 64 x 256 x 16; 128 accumulators a thread; stored in chunks of 64
//            rows x 128 bytes, through CHUNK_BUFFERS x 8 KB
#include "order.cuh"
#include "wgmma_epilogue.cuh"

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
constexpr int CHUNK_BUFFERS = 2;
constexpr uint32_t A_BYTES = BLOCK_M * BLOCK_K * 2, B_BYTES = BLOCK_N * BLOCK_K * 2;
constexpr uint32_t STAGE_BYTES = A_BYTES + B_BYTES;
constexpr uint32_t SHARED_BYTES =
    NUM_STAGES * STAGE_BYTES + CONSUMERS * CHUNK_BUFFERS * CHUNK_BYTES + 1024;
static_assert(SHARED_BYTES <= 232448 - 64, "an SM gives a block 227 KB, barriers included");

struct Schedule {
  int M, N, K, cluster;  // cluster: blocks in a cluster, 1 or 2

  __device__ int rows() const { return (M - 1) / (BLOCK_M * cluster) + 1; }
  __device__ int cols() const { return (N - 1) / BLOCK_N + 1; }

  // The tile that block `rank` of a cluster computes of the cluster's tile `index`.
  __device__ Tile tile(int index, int rank) const {
    if (cluster == 1) return grouped_tile<GROUP_M>(index, rows(), cols());
    const Tile pair = grouped_tile<GROUP_M / 2>(index, rows(), cols());
    return {pair.m * 2 + rank, pair.n};
  }
};

// What a build is for: the build system compiles one case at a time. By default it is all cases.
template <typename In, bool PLAIN>
constexpr bool BUILT =
#ifdef TCGEMM_IN
    PLAIN == TCGEMM_PLAIN &&
    TCGEMM_IN == static_cast<int>(std::is_same_v<In, __half> ? DType::f16 : DType::bf16);
#else
    true;
#endif

// What the plain product does without.
struct Plain {};
struct Fused {
  Epilogue<float> epilogue;
  int batch, a_step, b_step;  // a_step, b_step: 0 where the batch shares the operand, else 1
};

template <typename In, typename Out, Major A, Major B, typename Extra>
__global__ void __launch_bounds__(THREADS, 1)
    wgmma_persistent(const __grid_constant__ CUtensorMap a_map,
                     const __grid_constant__ CUtensorMap b_map,
                     const __grid_constant__ CUtensorMap c_map, PlainOutput plain,
                     Schedule schedule, const __grid_constant__ Extra extra) {
  constexpr bool FUSED = std::is_same_v<Extra, Fused>;
  extern __shared__ uint8_t shared[];
  __shared__ uint64_t barriers[2 * NUM_STAGES];
  const uint32_t ring = (shared_address(shared) + 1023) / 1024 * 1024;
  const uint32_t full = shared_address(barriers), empty = full + 8 * NUM_STAGES;

  const int cluster = schedule.cluster, rank = cluster > 1 ? cluster_ctarank() : 0;
  const int first = blockIdx.x / cluster, step = gridDim.x / cluster;
  const int k_tiles = (schedule.K - 1) / BLOCK_K + 1;
  const int tiles_of_one = schedule.rows() * schedule.cols();
  int tiles = tiles_of_one;
  if constexpr (FUSED) tiles *= extra.batch;

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
        const int z = FUSED ? index / tiles_of_one : 0;
        const Tile tile = schedule.tile(index - z * tiles_of_one, rank);
        const int m = tile.m * BLOCK_M, n = tile.n * BLOCK_N;
        int a_z = 0, b_z = 0;
        if constexpr (FUSED) a_z = z * extra.a_step, b_z = z * extra.b_step;
        for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
          mbarrier_try_wait_parity(empty + 8 * stage, phase ^ 1);
          const uint32_t barrier = full + 8 * stage, a_tile = ring + stage * STAGE_BYTES;
          mbarrier_arrive_expect_tx(barrier, STAGE_BYTES);
          load_tile<A, BLOCK_M, FUSED>(a_tile, &a_map, barrier, m, k_tile * BLOCK_K, a_z);
          load_tile_multicast<B, BLOCK_N, FUSED>(a_tile + A_BYTES, &b_map, barrier, n,
                                                 k_tile * BLOCK_K, rank, cluster, b_z);
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
    const uint64_t a_desc = wgmma_descriptor(ring + consumer * BYTES_PER_64_MN);
    const uint64_t b_desc = wgmma_descriptor(ring + A_BYTES);
    const uint32_t chunks =
        ring + NUM_STAGES * STAGE_BYTES + consumer * CHUNK_BUFFERS * CHUNK_BYTES;
    float d[BLOCK_N / 2];
    uint32_t stage = 0, phase = 0;
    for (int index = first; index < tiles; index += step) {
      const int z = FUSED ? index / tiles_of_one : 0;
      const Tile tile = schedule.tile(index - z * tiles_of_one, rank);
      const int m = tile.m * BLOCK_M + consumer * 64, n = tile.n * BLOCK_N;
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
        if (k_tile > 0 && lane < cluster)
          mbarrier_arrive_cluster(empty + 8 * (stage == 0 ? NUM_STAGES - 1 : stage - 1), lane);
        if (++stage == NUM_STAGES) stage = 0, phase ^= 1;
      }
      ChunkOfCIn<Out> c_in;
      if constexpr (FUSED) c_in.load(extra.epilogue, m, n, schedule.M, schedule.N, z);
      wgmma_wait_group<0>();
      if (lane < cluster)
        mbarrier_arrive_cluster(empty + 8 * (stage == 0 ? NUM_STAGES - 1 : stage - 1), lane);

      if constexpr (FUSED)
        finish_chunks<Out>(extra.epilogue, c_in, d, m, n, schedule.M, schedule.N, z);
      if (plain.data != nullptr) {
        store_accumulators<Out>(plain.at(z, sizeof(Out)), d, m, n, schedule.M, schedule.N);
        continue;
      }
#pragma unroll
      for (int i = 0; i < BLOCK_N / CHUNK_N<Out>; ++i) {
        const uint32_t chunk = chunks + i % CHUNK_BUFFERS * CHUNK_BYTES;
        // The buffer's last store has been read out before anyone writes it again.
        if (stores) cp_async_bulk_wait_group_read<CHUNK_BUFFERS - 1>();
        bar_sync(1 + consumer, 128);
        write_chunk<Out>(chunk, d, i * CHUNK_N<Out>);
        fence_proxy_async();
        bar_sync(1 + consumer, 128);
        if (stores) {
          if constexpr (FUSED)
            tma_store_3d(&c_map, chunk, n + i * CHUNK_N<Out>, m, z);
          else
            tma_store_2d(&c_map, chunk, n + i * CHUNK_N<Out>, m);
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

// `batch`: 0 for the plain product, whose tensor maps have two dimensions.
template <typename Extra>
int launch_extra(const Gemm& gemm, int64_t batch, const Extra& extra, cudaStream_t stream) {
  CUtensorMap a_map, b_map, c_map{};
  Major a_major, b_major;
  int sms = 0;
  int error = operand_map(gemm.a, false, gemm.in, BLOCK_M, &a_map, &a_major, batch);
  if (error == cudaSuccess)
    error = operand_map(gemm.b, true, gemm.in, BOX_ROWS<Major::K>, &b_map, &b_major, batch);
  if (error == cudaSuccess) error = multiprocessors(&sms);
  if (error != cudaSuccess) return error;
  const PlainOutput plain = output_map(gemm.c, gemm.out, CHUNK_ROWS, &c_map, batch);

  Schedule schedule{static_cast<int>(gemm.c.rows), static_cast<int>(gemm.c.cols),
                    static_cast<int>(gemm.a.cols), 1};
  const int64_t tiles_m = ceil_div(schedule.M, BLOCK_M), tiles_n = ceil_div(schedule.N, BLOCK_N);
  if (tiles_m * tiles_n > INT32_MAX / 2 / gemm.batch) return cudaErrorInvalidConfiguration;
  if (MAX_CLUSTER > 1 && tiles_m * tiles_n * gemm.batch > 4 * sms &&
      (tiles_m % 2 == 0 || tiles_m > 16))
    schedule.cluster = 2;
  // Clusters beyond what the last round needs would wait at its end, and draw power.
  const int64_t tiles = ceil_div(tiles_m, schedule.cluster) * tiles_n * gemm.batch;
  const int64_t rounds = ceil_div(tiles, sms / schedule.cluster);
  return with_types_and_majors(gemm, a_major, b_major, [&](auto in, auto out, auto a, auto b) {
    using In = decltype(in);
    if constexpr (BUILT<In, std::is_same_v<Extra, Plain>>)
      return launch_clusters(wgmma_persistent<In, decltype(out), a, b, Extra>,
                             static_cast<unsigned>(ceil_div(tiles, rounds)), schedule.cluster,
                             dim3(THREADS), SHARED_BYTES, stream, a_map, b_map, c_map, plain,
                             schedule, extra);
    return static_cast<int>(cudaErrorNotSupported);
  });
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = with_rows_of_c(asked);
  if (is_plain(gemm) && gemm.batch == 1) return launch_extra(gemm, 0, Plain{}, stream);
  const Fused fused{epilogue_of<float>(gemm), static_cast<int>(gemm.batch),
                    gemm.a.batch_stride != 0, gemm.b.batch_stride != 0};
  return launch_extra(gemm, gemm.batch, fused, stream);
}
