// C[M, N] = A[M, K] B[K, N], and all that can be fused, for 8-bit types, tf32 and float32 (tf32x3).
//
// ADDS           the other types of the tensor cores, on the schedule of wgmma_persistent. A row of
//                a panel is 128 bytes of K whatever the type. Of float32 an operand that is across
//                K is read so, into registers, as A, of C transposed where it is B: load_rows; else
//                what TMA cannot read along K is repacked (host/repack.cuh). Ping-pong: a consumer
//                stores a tile of its own while the other multiplies the next. tf32: TMA rounds to
//                nearest on the way in. PROMOTE: the tensor cores truncate each partial sum (of
//                8-bit floats to some 14 bits), so every 128 bytes of K are summed from zero and
//                added in float32. tf32x3: x = hi + lo, and hi hi + hi lo + lo hi are multiplied
//                (lo lo is at most 2^-21); consumers split A in registers, idle warps B in shared,
//                or of large products a pass beforehand in memory (terms.cuh). Parts of K, where C
//                has few tiles: a part is scheduled as a matrix of a batch (sm90/parts.cuh).
// STILL MISSING  K of a batch is never divided. Built case by case (wgmma_types/modes.cuh).
//
// grid       as few clusters of 1 or 2 blocks along M as finish in as many waves. Then, with parts
//            of K, one to four threads for 16 bytes of sums
// block      one producer and 1 to 3 consumer warpgroups; the tiling that ends first (tiling.cuh)
// warpgroup  64 or 2 x 64 rows of C: wgmma 64 x BLOCK_N x 32 bytes; stored by 64 rows x 128 bytes
#include "sm90/epilogue_columns.cuh"
#include "wgmma_types/modes.cuh"
#include "sm90/parts.cuh"
#include "sm90/scheduler.cuh"
#include "wgmma_types/accumulators.cuh"
#include "wgmma_types/terms.cuh"
#include "wgmma_types/tiling.cuh"

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

constexpr int BLOCK_K = 128;  // bytes
constexpr int GROUP_M = 16;
constexpr int SPLITTERS = 3;  // warps
static_assert(BLOCK_K == ROW_BYTES);

// Tiles of C, in the order in which blocks visit them.
template <typename T>
using TilesOf = Schedule<T::M, T::N, GROUP_M>;

// What the plain product does without, and a part of one. A part is a matrix of a batch to the
// schedule; its A and B are those of the product from step part * k_tiles along K on.
struct Plain {};
struct Part {};
template <typename Extra>
constexpr bool FUSES = !std::is_same_v<Extra, Plain> && !std::is_same_v<Extra, Part>;

template <typename Mode, typename Out, typename T, typename Extra>
__global__ void __launch_bounds__(T::THREADS, 1)
    wgmma_types(const __grid_constant__ CUtensorMap a_map,
                const __grid_constant__ CUtensorMap b_map,
                const __grid_constant__ CUtensorMap c_map, PlainOutput plain,
                TilesOf<T> schedule, int k_tiles, const __grid_constant__ Extra extra) {
  using Acc = typename Mode::Acc;
  constexpr bool FUSED = FUSES<Extra>, DIVIDED = std::is_same_v<Extra, Part>;
  constexpr uint32_t NUM_STAGES = T::NUM_STAGES;
  constexpr int READERS = T::PINGPONG ? 1 : T::CONSUMERS;  // consumers of a stage
  extern __shared__ uint8_t shared[];
  __shared__ uint64_t barriers[3 * NUM_STAGES + T::CONSUMERS];
  static_assert(sizeof(barriers) <= BARRIER_BYTES);
  const uint32_t stages = (shared_address(shared) + 1023) / 1024 * 1024;
  Ring<NUM_STAGES> ring{shared_address(barriers)};
  const uint32_t pingpong = ring.barriers + 24 * NUM_STAGES;  // one for each consumer
  const int cluster = schedule.cluster, rank = cluster > 1 ? cluster_ctarank() : 0;
  const int first = blockIdx.x / cluster, step = gridDim.x / cluster, tiles = schedule.tiles();

  if (threadIdx.x == 0) {
    prefetch_tensormaps(a_map, b_map, c_map, plain);
    for (Ring<NUM_STAGES> each = ring; each.phase == 0; each.advance()) {
      mbarrier_init(each.full(), 1);
      mbarrier_init(each.empty(), 4 * READERS * cluster);
      mbarrier_init(each.split(), SPLITTERS);
    }
    // All warps arrive: by one alone it runs two phases ahead of another that has yet to look.
    for (int i = 0; i < T::CONSUMERS; ++i) mbarrier_init(pingpong + 8 * i, T::PINGPONG ? 4 : 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (cluster > 1) barrier_cluster_arrive(), barrier_cluster_wait();
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();

  const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0);
  int m, n, z;
  if (warp < 4) {
    if constexpr (T::CONSUMERS > 1) setmaxnreg_dec<T::PRODUCER_REGISTERS>();
    if (threadIdx.x % 32 == 0 && warp < 1) {
      for (int index = first + warp; index < tiles; index += step) {  // + 0: uniform (the page)
        schedule.template locate<true>(index, rank, &m, &n, &z);
        for (int k_tile = 0; k_tile < k_tiles; ++k_tile, ring.advance()) {
          mbarrier_try_wait_parity(ring.empty(), ring.phase ^ 1);
          const uint32_t full = ring.full(), tile = stages + ring.stage * T::STAGE_BYTES;
          const int k = ((DIVIDED ? z * k_tiles : 0) + k_tile) * (BLOCK_K / Mode::ITEM);
          const int z_b = z * schedule.b_step;
          mbarrier_arrive_expect_tx(full, T::LOADED_BYTES);
          load_a<T>(tile, &a_map, full, m, k, z * schedule.a_step);
          load_tile_multicast<Major::K, T::N, true, T::N / 2>(
              tile + T::A_BYTES, &b_map, full, n, k, rank, cluster, z_b);
          if constexpr (T::IN_TERMS) {
            const int low = schedule.b_step ? schedule.batch : 1;
            load_tile_multicast<Major::K, T::N, true, T::N / 2>(
                tile + T::A_BYTES + T::B_BYTES, &b_map, full, n, k, rank, cluster, z_b + low);
          }
        }
      }
    } else if (T::SPLITS_B && warp > 0) {
      for (int index = first; index < tiles; index += step) {
        for (int k_tile = 0; k_tile < k_tiles; ++k_tile, ring.advance()) {
          mbarrier_try_wait_parity(ring.full(), ring.phase);
          split_float32<T::B_BYTES, 32 * SPLITTERS>(
              stages + ring.stage * T::STAGE_BYTES + T::A_BYTES, threadIdx.x - 32);
          fence_proxy_async();
          __syncwarp();
          if (threadIdx.x % 32 == 0) mbarrier_arrive(ring.split());
        }
      }
    }
    __syncwarp();
  } else {
    if constexpr (T::CONSUMERS > 1) setmaxnreg_inc<T::CONSUMER_REGISTERS>();
    const int consumer = warp / 4 - 1;
    const bool elected = threadIdx.x % 128 == 0;  // the thread that owns the TMA stores
    const int row = T::PINGPONG ? 0 : consumer * 64 * T::HALVES;  // of the consumer in the tile
    const Operands<T> from{stages, row, cluster};
    RowTerms<Out, Acc> rows;
    Addends<Out> addends;
    const auto load_addends = [&](int half) {
      if constexpr (FUSED) {
        rows.load(extra, m + 64 * half, n, T::N, schedule.M, schedule.N);
        addends.load(extra, rows, m + 64 * half, n, schedule.M, schedule.N, z);
      }
    };
    const auto finish = [&](auto& values, int half) {
      const int top = m + 64 * half;
      const uint32_t chunks =
          stages + T::RING_BYTES + consumer * T::CHUNK_BUFFERS * CHUNK_BYTES;
      if constexpr (FUSED)
        finish_chunks(extra, rows, addends, values, top, n, schedule.M, schedule.N, z);
      if (plain.data != nullptr)
        return store_accumulators<Out>(plain.at(z, sizeof(Out)), values, top, n, schedule.M,
                                       schedule.N);
      if constexpr (T::ACROSS)
        if (by_columns(plain))
          return store_columns(&c_map, chunks, 1 + consumer, values, top, n, z);
      store_chunks<Out, T::CHUNK_BUFFERS, true>(&c_map, chunks, 1 + consumer, values, top, n, z);
    };
    const int own = T::PINGPONG ? consumer * step : 0;
    uint32_t parity = 0;  // parity
    if (own) ring.skip(k_tiles);
    bool starts_next = T::STAGGERED && consumer + 1 < T::CONSUMERS;
    const auto start_next = [&] {
      if (starts_next && elected) mbarrier_arrive(pingpong + 8 * (consumer + 1));
      starts_next = false;
    };
    if (T::STAGGERED && consumer > 0) mbarrier_try_wait_parity(pingpong + 8 * consumer, 0);
    for (int index = first + own; index < tiles; index += T::PINGPONG ? 2 * step : step) {
      schedule.template locate<true>(index, rank, &m, &n, &z);
      m += row;
      if constexpr (Mode::PROMOTE) {
        float sums[T::N / 2];
        if constexpr (T::IN_TERMS) {
          accumulate_loaded_terms(ring, from, k_tiles, sums, start_next);
        } else if constexpr (Mode::SPLIT) {
          accumulate_three_products(ring, from, k_tiles, sums, start_next);
        } else {
          float d[T::SETS][1][T::N / 2];
          accumulate_promoted<Mode>(ring, from, k_tiles, sums, d, start_next);
        }
        load_addends(0);
        finish(sums, 0);
      } else {
        Acc d[T::HALVES][T::N / 2];
        // A stage's parity says which use it is at only once the other consumer has seen its own.
        if (T::PINGPONG) mbarrier_try_wait_parity(pingpong + 8 * consumer, parity ^ 1 ^ consumer);
        if constexpr (T::ACROSS)
          accumulate_registers(ring, from, k_tiles, d);
        else
          accumulate<Mode>(ring, from, k_tiles, d, [&] {
            if (T::PINGPONG && threadIdx.x % 32 == 0)
              mbarrier_arrive(pingpong + 8 * (1 - consumer));
          });
        if (T::PINGPONG) parity ^= 1;
        load_addends(0);
        wgmma_wait_group<0>();
        ring.release(1, cluster);
        if constexpr (T::PINGPONG) ring.skip(k_tiles);
#pragma unroll
        for (int half = 0; half < T::HALVES; ++half) {
          if (half > 0) load_addends(half);
          finish(d[half], half);
        }
      }
    }
    if (elected) cp_async_bulk_wait_group_read<0>();
  }
  if (cluster > 1) barrier_cluster_arrive(), barrier_cluster_wait();
}

// `stored`: the problem as it is scheduled and stored, which is `gemm` but for parts of K.
template <typename Mode, typename Out, typename T, typename Extra>
int launch_tiling(const Gemm& gemm, const Gemm& stored, const Extra& extra, cudaStream_t stream) {
  CUtensorMap a_map, b_map, c_map{};
  TilesOf<T> schedule;
  unsigned clusters;
  constexpr bool TO_TF32 = Mode::MMA == Mma::tf32 && !Mode::SPLIT;
  int error = map_of_a<T>(gemm, TO_TF32, stream, &a_map);
  if (error == cudaSuccess)
    error = T::IN_TERMS
                ? terms_map(gemm, gemm.b, true, T::N / 2, stream, &b_map)
                : kmajor_map(gemm, gemm.b, true, BLOCK_K, T::N / 2, TO_TF32, stream, &b_map);
  if (error == cudaSuccess) error = schedule_of(stored, &schedule, &clusters);
  if (error != cudaSuccess) return error;
  const PlainOutput plain = output_map_either_way(stored.c, stored.out, &c_map, stored.batch);
  const int k_tiles = static_cast<int>(steps_of_part(gemm, BLOCK_K / Mode::ITEM));
  return launch_clusters(wgmma_types<Mode, Out, T, Extra>, clusters, schedule.cluster,
                         dim3(T::THREADS), MOST_SHARED_BYTES - BARRIER_BYTES, stream, a_map, b_map,
                         c_map, plain, schedule, k_tiles, extra);
}

template <typename Mode, typename Out, typename Extra>
int launch_mode(const Gemm& gemm, const Gemm& stored, const Extra& extra, cudaStream_t stream) {
  return with_tiling<Mode, !FUSES<Extra>>(gemm, [&](auto tiling) {
    return launch_tiling<Mode, Out, decltype(tiling)>(gemm, stored, extra, stream);
  });
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm by_rows = with_rows_of_c(asked);
  const auto as_read = [](const Gemm& x) { return plan_of(x).across == 2 ? transposed(x) : x; };
  const Gemm gemm = as_read(by_rows);
  return with_modes(gemm, [&](auto mode, auto out) {
    using Mode = decltype(mode);
    using Out = decltype(out);
    using Acc = typename Mode::Acc;
    if (parts_of(gemm) > 1) {
      if constexpr (BUILT_FOR_PARTS)
        return launch_parts<Acc, Out>(
            by_rows, BLOCK_K / Mode::ITEM, stream, [&](const Gemm& stored) {
              return launch_mode<Mode, Acc>(gemm, as_read(stored), Part{}, stream);
            });
    } else if constexpr (BUILT_WHOLE) {
      if (is_plain(gemm)) return launch_mode<Mode, Out>(gemm, gemm, Plain{}, stream);
      return launch_mode<Mode, Out>(gemm, gemm, epilogue_of<Acc>(gemm), stream);
    }
    return int{cudaErrorNotSupported};
  });
}
