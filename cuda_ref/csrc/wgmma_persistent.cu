// C[M, N] = A[M, K] B[K, N] by blocks that stay: one to an SM, in pairs that share their loads.
// With alpha, beta C_in, bias and an activation, or a batch of them, where that is asked.
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
#include "wgmma_epilogue.cuh"
#include "wgmma_schedule.cuh"

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

constexpr int BLOCK_M = 128;
constexpr int BLOCK_N = 256;
constexpr int SMALL_BLOCK_M = 64;
constexpr int SMALL_BLOCK_N = 128;
constexpr int SMALL_TILES = 64;  // of the larger tile, up to which the smaller one pays
constexpr int BLOCK_K = 64;
constexpr int NUM_STAGES = 4;
constexpr int SMALL_NUM_STAGES = 8;
constexpr int GROUP_M = 16;
// 168 registers a thread at launch: 128 * (40 + 2 * 232) = 384 * 168.
constexpr int PRODUCER_REGISTERS = 40;
constexpr int CONSUMER_REGISTERS = 232;
constexpr int CHUNK_BUFFERS = 2;

// The sizes of the one tile and of the other.
template <bool SMALL>
struct Tiling {
  static constexpr int M = SMALL ? SMALL_BLOCK_M : BLOCK_M, N = SMALL ? SMALL_BLOCK_N : BLOCK_N;
  static constexpr int STAGES = SMALL ? SMALL_NUM_STAGES : NUM_STAGES;
  static constexpr int CONSUMERS = M / 64, THREADS = 128 * (1 + CONSUMERS);
  static constexpr uint32_t A_BYTES = M * BLOCK_K * 2, STAGE_BYTES = A_BYTES + N * BLOCK_K * 2;
  static constexpr uint32_t SHARED_BYTES =
      STAGES * STAGE_BYTES + CONSUMERS * CHUNK_BUFFERS * CHUNK_BYTES + 1024;
  static_assert(SHARED_BYTES <= 232448 - 128, "an SM gives a block 227 KB, barriers included");
  template <Major MAJOR>
  static constexpr int B_BOX = MAJOR == Major::K ? N / 2 : 64;  // rows; half of them multicast
  using Tiles = Schedule<M, N, GROUP_M>;
};

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

template <typename T, typename In, typename Out, Major A, Major B, typename Extra>
__global__ void __launch_bounds__(T::THREADS, 1)
    wgmma_persistent(const __grid_constant__ CUtensorMap a_map,
                     const __grid_constant__ CUtensorMap b_map,
                     const __grid_constant__ CUtensorMap c_map, PlainOutput plain,
                     typename T::Tiles schedule, int k_tiles, const __grid_constant__ Extra extra) {
  constexpr bool FUSED = std::is_same_v<Extra, Fused>;
  constexpr uint32_t STAGES = T::STAGES, STAGE_BYTES = T::STAGE_BYTES;
  extern __shared__ uint8_t shared[];
  __shared__ uint64_t barriers[2 * STAGES];
  const uint32_t ring = (shared_address(shared) + 1023) / 1024 * 1024;
  const uint32_t full = shared_address(barriers), empty = full + 8 * STAGES;

  const int cluster = schedule.cluster, rank = cluster > 1 ? cluster_ctarank() : 0;
  const int first = blockIdx.x / cluster, step = gridDim.x / cluster;
  const int tiles = schedule.tiles();
  int m, n, z;

  if (threadIdx.x == 0) {
    for (uint32_t stage = 0; stage < STAGES; ++stage) {
      mbarrier_init(full + 8 * stage, 1);
      // One arrival per consumer warp of the cluster: a multicast lands in every block's stage.
      mbarrier_init(empty + 8 * stage, 4 * T::CONSUMERS * cluster);
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
    if constexpr (T::CONSUMERS == 2) setmaxnreg_dec<PRODUCER_REGISTERS>();
    if (threadIdx.x == 0) {
      prefetch_tensormap(&a_map);
      prefetch_tensormap(&b_map);
      uint32_t stage = 0, phase = 0;
      for (int index = first; index < tiles; index += step) {
        schedule.template locate<FUSED>(index, rank, &m, &n, &z);
        for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
          mbarrier_try_wait_parity(empty + 8 * stage, phase ^ 1);
          const uint32_t barrier = full + 8 * stage, a_tile = ring + stage * STAGE_BYTES;
          mbarrier_arrive_expect_tx(barrier, STAGE_BYTES);
          load_tile<A, T::M, FUSED>(a_tile, &a_map, barrier, m, k_tile * BLOCK_K,
                                    z * schedule.a_step);
          load_tile_multicast<B, T::N, FUSED, T::template B_BOX<B>>(
              a_tile + T::A_BYTES, &b_map, barrier, n, k_tile * BLOCK_K, rank, cluster,
              z * schedule.b_step);
          if (++stage == STAGES) stage = 0, phase ^= 1;
        }
      }
    }
    __syncwarp();
  } else {
    if constexpr (T::CONSUMERS == 2) setmaxnreg_inc<CONSUMER_REGISTERS>();
    const int consumer = warpgroup - 1;
    const int lane = threadIdx.x % 32;
    const bool stores = threadIdx.x % 128 == 0;  // the thread that owns the TMA stores
    const uint64_t a_desc = wgmma_descriptor(ring + consumer * BYTES_PER_64_MN);
    const uint64_t b_desc = wgmma_descriptor(ring + T::A_BYTES);
    const uint32_t chunks =
        ring + STAGES * STAGE_BYTES + consumer * CHUNK_BUFFERS * CHUNK_BYTES;
    float d[T::N / 2];
    uint32_t stage = 0, phase = 0;
    for (int index = first; index < tiles; index += step) {
      schedule.template locate<FUSED>(index, rank, &m, &n, &z);
      m += consumer * 64;
      for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
        mbarrier_try_wait_parity(full + 8 * stage, phase);
        const uint32_t offset = stage * (STAGE_BYTES >> 4);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < BLOCK_K / MMA_K; ++k) {
          const uint64_t a = a_desc + offset + k * DESCRIPTOR_PER_MMA_K<A>;
          const uint64_t b = b_desc + offset + k * DESCRIPTOR_PER_MMA_K<B>;
          if constexpr (T::N == 256)
            wgmma_m64n256k16<In, A, B>(d, a, b, k_tile > 0 || k > 0);
          else
            wgmma_m64n128k16<In, A, B>(d, a, b, k_tile > 0 || k > 0);
        }
        wgmma_commit_group();
        // One group stays in flight; the one before has read its stage, which goes back.
        wgmma_wait_group<1>();
        if (k_tile > 0 && lane < cluster)
          mbarrier_arrive_cluster(empty + 8 * (stage == 0 ? STAGES - 1 : stage - 1), lane);
        if (++stage == STAGES) stage = 0, phase ^= 1;
      }
      RowTerms<Out, float> rows;
      Ahead<Out> ahead;
      if constexpr (FUSED) {
        rows.load(extra, m, n, T::N, schedule.M, schedule.N);
        ahead.load(extra, rows, m, n, schedule.M, schedule.N, z);
      }
      wgmma_wait_group<0>();
      if (lane < cluster)
        mbarrier_arrive_cluster(empty + 8 * (stage == 0 ? STAGES - 1 : stage - 1), lane);

      if constexpr (FUSED)
        finish_chunks(extra, rows, ahead, d, m, n, schedule.M, schedule.N, z);
      if (plain.data != nullptr) {
        store_accumulators<Out>(plain.at(z, sizeof(Out)), d, m, n, schedule.M, schedule.N);
        continue;
      }
      store_chunks<Out, CHUNK_BUFFERS, FUSED>(&c_map, chunks, 1 + consumer, d, m, n, z);
    }
    if (stores) cp_async_bulk_wait_group_read<0>();
  }
  // No block leaves while the other may still write its stages or arrive on its barriers.
  if (cluster > 1) {
    barrier_cluster_arrive();
    barrier_cluster_wait();
  }
}

template <typename T, typename Extra>
int launch_tiling(const Gemm& gemm, const Extra& extra, cudaStream_t stream) {
  constexpr bool PLAIN = std::is_same_v<Extra, Plain>;
  const int64_t batch = PLAIN ? 0 : gemm.batch;  // 0: tensor maps of two dimensions
  CUtensorMap a_map, b_map, c_map{};
  Major a_major, b_major;
  typename T::Tiles schedule;
  unsigned clusters;
  int error = operand_map(gemm.a, false, gemm.in, T::M, &a_map, &a_major, batch);
  if (error == cudaSuccess)
    error = operand_map(gemm.b, true, gemm.in, T::N / 2, &b_map, &b_major, batch);
  if (error == cudaSuccess) error = schedule_of(gemm, &schedule, &clusters);
  if (error != cudaSuccess) return error;
  const PlainOutput plain = output_map(gemm.c, gemm.out, CHUNK_ROWS, &c_map, batch);
  const int k_tiles = static_cast<int>(ceil_div(gemm.a.cols, BLOCK_K));
  return with_types_and_majors(gemm, a_major, b_major, [&](auto in, auto out, auto a, auto b) {
    using In = decltype(in);
    using Out = decltype(out);
    if constexpr (BUILT<In, Out, PLAIN>)
      return launch_clusters(wgmma_persistent<T, In, Out, a, b, Extra>, clusters,
                             schedule.cluster, dim3(T::THREADS), T::SHARED_BYTES, stream, a_map,
                             b_map, c_map, plain, schedule, k_tiles, extra);
    return static_cast<int>(cudaErrorNotSupported);
  });
}

template <typename Extra>
int launch_extra(const Gemm& gemm, const Extra& extra, cudaStream_t stream) {
  // Few large tiles leave SMs idle: a small one has 2.8 times the rate of a quarter of a large one.
  const int64_t tiles =
      ceil_div(gemm.c.rows, BLOCK_M) * ceil_div(gemm.c.cols, BLOCK_N) * gemm.batch;
  return tiles <= SMALL_TILES ? launch_tiling<Tiling<true>>(gemm, extra, stream)
                              : launch_tiling<Tiling<false>>(gemm, extra, stream);
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = with_rows_of_c(asked);
  if (is_plain(gemm) && gemm.batch == 1) return launch_extra(gemm, Plain{}, stream);
  return launch_extra(gemm, epilogue_of<float>(gemm), stream);
}
