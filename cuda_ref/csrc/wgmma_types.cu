// C[M, N] = A[M, K] B[K, N], and all that can be fused, for 8-bit types, tf32 and float32 (tf32x3).
//
// ADDS           the other types of the tensor cores, on the schedule of wgmma_persistent. A row of
//                a panel is 128 bytes of K whatever the type, and both operands must lie K-major:
//                one that does not, or whose rows TMA cannot read, is copied first (pack.cuh).
//                tf32: TMA rounds to nearest on the way in. PROMOTE: the tensor cores truncate each
//                partial sum (of 8-bit floats to some 14 bits), so every 128 bytes of K are summed
//                from zero and added in float32 registers. tf32x3: three warps that the producer
//                leaves idle split each stage x = hi + lo, and hi hi + hi lo + lo hi are multiplied
//                (lo lo is below 2^-22); hi is x itself, whose lower bits the tensor cores ignore.
// STILL MISSING  a second tile where C has few of these. Built case by case (wgmma_mode.cuh).
//
// grid       as few clusters of 1 or 2 blocks along M as finish in the same number of rounds
// block      one producer and CONSUMERS consumer warpgroups; BLOCK_M x BLOCK_N of C, BLOCK_N 256,
//            or PROMOTE_BLOCK_N where a second set of accumulators holds the promoted sums
// warpgroup  64 x BLOCK_N of C: wgmma 64 x BLOCK_N x 32 bytes; stored by 64 rows x 128 bytes
#include "pack.cuh"
#include "split.cuh"
#include "wgmma_epilogue.cuh"
#include "wgmma_mode.cuh"
#include "wgmma_schedule.cuh"

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

constexpr int BLOCK_M = 128;
constexpr int BLOCK_N = 256;
constexpr int PROMOTE_BLOCK_N = 128;
constexpr int BLOCK_K = 128;  // bytes
constexpr int GROUP_M = 16;
constexpr int CONSUMERS = 2;
constexpr int THREADS = 128 * (1 + CONSUMERS);
// 168 registers a thread at launch: 128 * (40 + 2 * 232) = 384 * 168.
constexpr int PRODUCER_REGISTERS = 40;
constexpr int CONSUMER_REGISTERS = 232;
constexpr int SPLITTERS = 3;  // warps
constexpr int CHUNK_BUFFERS = 2;
constexpr uint32_t RING_BYTES = 192 * 1024;
constexpr uint32_t SHARED_BYTES = RING_BYTES + CONSUMERS * CHUNK_BUFFERS * CHUNK_BYTES + 1024;
static_assert(SHARED_BYTES <= 232448 - 256, "an SM gives a block 227 KB, barriers included");

// What the mode decides. LOADED_BYTES: of a stage, by TMA; tf32x3 has as many for the low parts.
template <typename Mode>
struct Tiling {
  static constexpr int N = Mode::PROMOTE ? PROMOTE_BLOCK_N : BLOCK_N;
  static constexpr uint32_t A_BYTES = BLOCK_M * BLOCK_K, LOADED_BYTES = A_BYTES + N * BLOCK_K;
  static constexpr uint32_t STAGE_BYTES = LOADED_BYTES * (Mode::SPLIT ? 2 : 1);
  static constexpr uint32_t NUM_STAGES = RING_BYTES / STAGE_BYTES;
  using Tiles = Schedule<BLOCK_M, N, GROUP_M>;
};

template <typename Mode, typename Out>
__global__ void __launch_bounds__(THREADS, 1)
    wgmma_types(const __grid_constant__ CUtensorMap a_map,
                const __grid_constant__ CUtensorMap b_map,
                const __grid_constant__ CUtensorMap c_map, PlainOutput plain,
                typename Tiling<Mode>::Tiles schedule, int k_tiles,
                const __grid_constant__ Epilogue<typename Mode::Acc> epilogue) {
  using Acc = typename Mode::Acc;
  using T = Tiling<Mode>;
  constexpr uint32_t NUM_STAGES = T::NUM_STAGES, STAGE_BYTES = T::STAGE_BYTES;
  constexpr bool SPLIT = Mode::SPLIT;
  extern __shared__ uint8_t shared[];
  __shared__ uint64_t barriers[3 * NUM_STAGES];
  const uint32_t ring = (shared_address(shared) + 1023) / 1024 * 1024;
  const uint32_t full = shared_address(barriers), empty = full + 8 * NUM_STAGES;
  const uint32_t split = empty + 8 * NUM_STAGES;
  const int cluster = schedule.cluster, rank = cluster > 1 ? cluster_ctarank() : 0;
  const int first = blockIdx.x / cluster, step = gridDim.x / cluster, tiles = schedule.tiles();

  if (threadIdx.x == 0) {
    for (uint32_t stage = 0; stage < NUM_STAGES; ++stage) {
      mbarrier_init(full + 8 * stage, 1);
      mbarrier_init(empty + 8 * stage, 4 * CONSUMERS * cluster);
      mbarrier_init(split + 8 * stage, SPLITTERS);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  if (cluster > 1) barrier_cluster_arrive(), barrier_cluster_wait();
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();

  const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  int m, n, z;
  uint32_t stage = 0, phase = 0;
  const auto advance = [&] {
    if (++stage == NUM_STAGES) stage = 0, phase ^= 1;
  };
  if (warp < 4) {
    setmaxnreg_dec<PRODUCER_REGISTERS>();
    if (threadIdx.x == 0) {
      prefetch_tensormap(&a_map);
      prefetch_tensormap(&b_map);
      for (int index = first; index < tiles; index += step) {
        schedule.template locate<true>(index, rank, &m, &n, &z);
        for (int k_tile = 0; k_tile < k_tiles; ++k_tile, advance()) {
          mbarrier_try_wait_parity(empty + 8 * stage, phase ^ 1);
          const uint32_t barrier = full + 8 * stage, tile = ring + stage * STAGE_BYTES;
          const int k = k_tile * (BLOCK_K / Mode::ITEM);
          mbarrier_arrive_expect_tx(barrier, T::LOADED_BYTES);
          load_tile<Major::K, BLOCK_M, true>(tile, &a_map, barrier, m, k, z * schedule.a_step);
          load_tile_multicast<Major::K, T::N, true, T::N / 2>(
              tile + T::A_BYTES, &b_map, barrier, n, k, rank, cluster, z * schedule.b_step);
        }
      }
    } else if (SPLIT && warp > 0) {
      for (int index = first; index < tiles; index += step) {
        for (int k_tile = 0; k_tile < k_tiles; ++k_tile, advance()) {
          mbarrier_try_wait_parity(full + 8 * stage, phase);
          split_float32<T::LOADED_BYTES, 32 * SPLITTERS>(ring + stage * STAGE_BYTES,
                                                            threadIdx.x - 32);
          fence_proxy_async();
          __syncwarp();
          if (lane == 0) mbarrier_arrive(split + 8 * stage);
        }
      }
    }
    __syncwarp();
  } else {
    setmaxnreg_inc<CONSUMER_REGISTERS>();
    const int consumer = warp / 4 - 1;
    const bool stores = threadIdx.x % 128 == 0;  // the thread that owns the TMA stores
    const uint64_t a_desc = wgmma_descriptor(ring + consumer * BYTES_PER_64_MN);
    const uint64_t b_desc = wgmma_descriptor(ring + T::A_BYTES);
    const uint32_t chunks = ring + RING_BYTES + consumer * CHUNK_BUFFERS * CHUNK_BYTES;
    // Two sets of accumulators where they are promoted: one is added, the other multiplied.
    Acc d[Mode::PROMOTE ? 2 : 1][T::N / 2], sums[Mode::PROMOTE ? T::N / 2 : 1];
    const auto multiply = [&](Acc(&d)[T::N / 2], bool more) {
      mbarrier_try_wait_parity(full + 8 * stage, phase);
      if constexpr (SPLIT) mbarrier_try_wait_parity(split + 8 * stage, phase);
      constexpr uint64_t PER_MMA_K = DESCRIPTOR_PER_MMA_K<Major::K>;
      constexpr uint64_t LOW = T::LOADED_BYTES >> 4;
      const uint64_t a = a_desc + stage * (STAGE_BYTES >> 4);
      const uint64_t b = b_desc + stage * (STAGE_BYTES >> 4);
      wgmma_fence();
      if constexpr (SPLIT) {  // the small products first: fewer large sums to truncate
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          wgmma_kmajor<Mode::MMA>(d, a + LOW + k * PER_MMA_K, b + k * PER_MMA_K, k > 0);
          wgmma_kmajor<Mode::MMA>(d, a + k * PER_MMA_K, b + LOW + k * PER_MMA_K, true);
        }
      }
#pragma unroll
      for (int k = 0; k < 4; ++k)
        wgmma_kmajor<Mode::MMA>(d, a + k * PER_MMA_K, b + k * PER_MMA_K, SPLIT || more || k > 0);
      wgmma_commit_group();
      advance();
    };
    // Gives back the stage that was read `ago` K tiles before the next one.
    const auto release = [&](uint32_t ago) {
      const uint32_t at = stage < ago ? stage + NUM_STAGES - ago : stage - ago;
      if (lane < cluster) mbarrier_arrive_cluster(empty + 8 * at, lane);
    };
    for (int index = first; index < tiles; index += step) {
      schedule.template locate<true>(index, rank, &m, &n, &z);
      m += consumer * 64;
      RowTerms<Out, Acc> rows;
      Ahead<Out> ahead;
      const auto finish = [&](auto& values) {
        finish_chunks(epilogue, rows, ahead, values, m, n, schedule.M, schedule.N, z);
        if (plain.data != nullptr)
          store_accumulators<Out>(plain.at(z, sizeof(Out)), values, m, n, schedule.M, schedule.N);
        else
          store_chunks<Out, CHUNK_BUFFERS, true>(&c_map, chunks, 1 + consumer, values, m, n, z);
      };
      if constexpr (!Mode::PROMOTE) {
        for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
          multiply(d[0], k_tile > 0);
          // One group stays in flight; the one before has read its stage, which goes back.
          wgmma_wait_group<1>();
          if (k_tile > 0) release(2);
        }
        rows.load(epilogue, m, n, T::N, schedule.M, schedule.N);
        ahead.load(epilogue, rows, m, n, schedule.M, schedule.N, z);
        wgmma_wait_group<0>();
        release(1);
        finish(d[0]);
      } else {
        const auto add = [&](const Acc(&d)[T::N / 2]) {
#pragma unroll
          for (int i = 0; i < T::N / 2; ++i) sums[i] += d[i];
        };
#pragma unroll
        for (int i = 0; i < T::N / 2; ++i) sums[i] = 0;
        const auto step_over = [&](auto& next, const auto& last) {
          multiply(next, false);
          wgmma_wait_group<1>();
          release(2);
          add(last);
        };
        multiply(d[0], false);
        int k_tile = 1;
        for (; k_tile + 1 < k_tiles; k_tile += 2) {
          step_over(d[1], d[0]);
          step_over(d[0], d[1]);
        }
        if constexpr (!SPLIT) rows.load(epilogue, m, n, T::N, schedule.M, schedule.N);
        if (k_tile < k_tiles) {
          step_over(d[1], d[0]);
          wgmma_wait_group<0>();
          add(d[1]);
        } else {
          wgmma_wait_group<0>();
          add(d[0]);
        }
        release(1);
        if constexpr (SPLIT) rows.load(epilogue, m, n, T::N, schedule.M, schedule.N);
        ahead.load(epilogue, rows, m, n, schedule.M, schedule.N, z);
        finish(sums);
      }
    }
    if (stores) cp_async_bulk_wait_group_read<0>();
  }
  if (cluster > 1) barrier_cluster_arrive(), barrier_cluster_wait();
}

template <typename Mode, typename Out>
int launch_mode(const Gemm& gemm, cudaStream_t stream) {
  using T = Tiling<Mode>;
  CUtensorMap a_map, b_map, c_map{};
  typename T::Tiles schedule;
  unsigned clusters;
  constexpr bool ROUNDS = Mode::MMA == Mma::tf32 && !Mode::SPLIT;
  int error = kmajor_map(gemm, gemm.a, false, BLOCK_K, BLOCK_M, ROUNDS, stream, &a_map);
  if (error == cudaSuccess)
    error = kmajor_map(gemm, gemm.b, true, BLOCK_K, T::N / 2, ROUNDS, stream, &b_map);
  if (error == cudaSuccess) error = schedule_of(gemm, &schedule, &clusters);
  if (error != cudaSuccess) return error;
  const PlainOutput plain = output_map(gemm.c, gemm.out, CHUNK_ROWS, &c_map, gemm.batch);
  const int k_tiles = static_cast<int>(ceil_div(gemm.a.cols, BLOCK_K / Mode::ITEM));
  return launch_clusters(wgmma_types<Mode, Out>, clusters, schedule.cluster, dim3(THREADS),
                         SHARED_BYTES, stream, a_map, b_map, c_map, plain, schedule, k_tiles,
                         epilogue_of<typename Mode::Acc>(gemm));
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = with_rows_of_c(asked);
  return with_modes(gemm, [&](auto mode, auto out) {
    return launch_mode<decltype(mode), decltype(out)>(gemm, stream);
  });
}
