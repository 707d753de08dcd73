// C[M, N] = A[M, K] B[K, N] with K divided among blocks, for a C of few tiles.
//
// ADDS           many blocks to a tile of C, each with its part of K: 256 x 256 x 16384 has 4 tiles
//                for 132 SMs. The blocks of a cluster add their sums through distributed shared
//                memory; where a cluster is not enough, each writes float32 sums to a workspace and
//                a second kernel adds them. Both go in the order of K, so no bit depends on timing.
// STILL MISSING  with few rows most of each multiply is padding (skinny.cu).
//
// grid       one cluster per BLOCK_M x BLOCK_N tile of C and group of splits; one block to an SM.
//            Then, with more than one group, one thread per four elements of C
// cluster    1 to MOST_SPLITS blocks, each of which multiplies its part of K
// block      a producer warp and CONSUMERS consumer warpgroups step through K by BLOCK_K, over a
//            ring of NUM_STAGES x 32 KB, which holds the sums at the end
// warpgroup  64 x 128 of C: wgmma 64 x 128 x 16; 64 accumulators a thread
#include <algorithm>

#include "sm90/reduce_kernel.cuh"

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

constexpr int BLOCK_M = 128;
constexpr int BLOCK_N = 128;
constexpr int BLOCK_K = 64;
constexpr int NUM_STAGES = 6;
constexpr int MOST_SPLITS = 8;
constexpr int MOST_PARTIALS = 16;
constexpr int CONSUMERS = 2;
constexpr int MULTIPLIERS = 128 * CONSUMERS;  // threads; the producer warp follows them
constexpr int THREADS = MULTIPLIERS + 32;
constexpr uint32_t A_BYTES = BLOCK_M * BLOCK_K * 2, B_BYTES = BLOCK_N * BLOCK_K * 2;
constexpr uint32_t STAGE_BYTES = A_BYTES + B_BYTES;
constexpr uint32_t ACCUMULATOR_BYTES = BLOCK_M * pitch_of(BLOCK_N) * 4;
// What the others of a cluster send: each part of the rows is rounded up to whole rows.
constexpr uint32_t PARTIAL_BYTES = (BLOCK_M + MOST_SPLITS) * pitch_of(BLOCK_N) * 4;
constexpr uint32_t SHARED_BYTES = NUM_STAGES * STAGE_BYTES + 1024;  // 1024: alignment of panels
static_assert(SHARED_BYTES <= MOST_SHARED_BYTES - 512, "room for the barriers too");
static_assert(ACCUMULATOR_BYTES + PARTIAL_BYTES <= NUM_STAGES * STAGE_BYTES,
              "they take the ring's place");

// Who multiplies what: block `rank` of cluster `index` takes part rank + splits * group of K.
struct Schedule {
  int tiles_m, tiles_n, K;
  int splits, groups;
  bool plain;  // nothing follows the product

  __device__ int group(int index) const { return index / (tiles_m * tiles_n); }
  __device__ Tile tile(int index) const {
    return row_major_tile(index % (tiles_m * tiles_n), tiles_n);
  }
  // The first K tile of a part; that of part splits * groups is the number of K tiles.
  __device__ int k_tile(int part) const {
    return int64_t{(K - 1) / BLOCK_K + 1} * part / (splits * groups);
  }
};

// `c` is C, or with several groups the float32 workspace [group, M, N], whose groups lie
// `group_stride` elements apart and which takes the sums as they are.
template <typename In, typename Out, Major A, Major B>
__global__ void __launch_bounds__(THREADS, 1)
    split_k(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
            Rows c, int64_t group_stride, Epilogue<float> epilogue, Schedule schedule) {
  extern __shared__ uint8_t shared[];
  __shared__ uint64_t barriers[2 * NUM_STAGES + 1];
  const uint32_t ring = (shared_address(shared) + 1023) / 1024 * 1024;
  const uint32_t full = shared_address(barriers), empty = full + 8 * NUM_STAGES;
  const uint32_t received = empty + 8 * NUM_STAGES;

  const int splits = schedule.splits, rank = splits > 1 ? cluster_ctarank() : 0;
  const int index = blockIdx.x / splits, group = schedule.group(index);
  const Tile tile = schedule.tile(index);
  const int m = tile.m * BLOCK_M, n = tile.n * BLOCK_N;
  const Share share{min(c.rows - m, BLOCK_M), splits};
  const int first = schedule.k_tile(group * splits + rank);
  const int last = schedule.k_tile(group * splits + rank + 1);

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < NUM_STAGES; ++stage) {
      mbarrier_init(full + 8 * stage, 1);
      mbarrier_init(empty + 8 * stage, MULTIPLIERS / 32);
    }
    if (splits > 1) expect_partials<BLOCK_N>(received, share, rank);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x == MULTIPLIERS) {
    for (int k_tile = first; k_tile < last && k_tile < first + NUM_STAGES; ++k_tile) {
      each_box<A, BLOCK_M>(m, k_tile * BLOCK_K, [&](uint32_t, int inner, int outer) {
        cp_async_bulk_prefetch_tensor_2d(&a_map, inner, outer);
      });
      each_box<B, BLOCK_N>(n, k_tile * BLOCK_K, [&](uint32_t, int inner, int outer) {
        cp_async_bulk_prefetch_tensor_2d(&b_map, inner, outer);
      });
    }
  }
  griddepcontrol_wait();

  float* sums = reinterpret_cast<float*>(shared + (ring - shared_address(shared)));
  const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0);
  if (warp == MULTIPLIERS / 32) {
    if (threadIdx.x == MULTIPLIERS) {
      prefetch_tensormap(&a_map);
      prefetch_tensormap(&b_map);
      uint32_t stage = 0, phase = 0;
      for (int k_tile = first; k_tile < last; ++k_tile) {
        mbarrier_try_wait_parity(empty + 8 * stage, phase ^ 1);
        const uint32_t barrier = full + 8 * stage, a_tile = ring + stage * STAGE_BYTES;
        mbarrier_arrive_expect_tx(barrier, STAGE_BYTES);
        load_tile<A, BLOCK_M>(a_tile, &a_map, barrier, m, k_tile * BLOCK_K);
        load_tile<B, BLOCK_N>(a_tile + A_BYTES, &b_map, barrier, n, k_tile * BLOCK_K);
        if (++stage == NUM_STAGES) stage = 0, phase ^= 1;
      }
      griddepcontrol_launch_dependents();
    }
    __syncwarp();
    if (splits > 1) barrier_cluster_arrive();
  } else {
    const int consumer = warp / 4;
    const bool arrives = threadIdx.x % 32 == 0;
    const uint64_t a_desc = wgmma_descriptor(ring + consumer * BYTES_PER_64_MN);
    const uint64_t b_desc = wgmma_descriptor(ring + A_BYTES);
    float d[BLOCK_N / 2];
    uint32_t stage = 0, phase = 0;
    for (int k_tile = first; k_tile < last; ++k_tile) {
      mbarrier_try_wait_parity(full + 8 * stage, phase);
      const uint32_t offset = stage * (STAGE_BYTES >> 4);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < BLOCK_K / MMA_K; ++k)
        wgmma_m64n128k16<In, A, B>(d, a_desc + offset + k * DESCRIPTOR_PER_MMA_K<A>,
                                   b_desc + offset + k * DESCRIPTOR_PER_MMA_K<B>,
                                   k_tile > first || k > 0);
      wgmma_commit_group();
      // One group stays in flight; the one before has read its stage, which goes back.
      wgmma_wait_group<1>();
      if (arrives && k_tile > first)
        mbarrier_arrive(empty + 8 * (stage == 0 ? NUM_STAGES - 1 : stage - 1));
      if (++stage == NUM_STAGES) stage = 0, phase ^= 1;
    }
    wgmma_wait_group<0>();
    if (splits > 1) barrier_cluster_arrive();
    bar_sync(1, MULTIPLIERS);  // all warps have read the ring: the sums may take its place
    write_accumulators(sums + consumer * 64 * pitch_of(BLOCK_N), d, pitch_of(BLOCK_N), 1);
    if (splits > 1) fence_proxy_async();
    bar_sync(1, MULTIPLIERS);
    if (splits > 1) {
      barrier_cluster_wait();  // all warps of all blocks have read their rings
      if (threadIdx.x == 0)
        send_partials<BLOCK_N>(ring, ring + ACCUMULATOR_BYTES, received, share, rank);
      mbarrier_try_wait_parity(received, 0);
    }
    const float* parts = sums + ACCUMULATOR_BYTES / 4;
    if (schedule.groups > 1) {
      c.data = static_cast<float*>(c.data) + group * group_stride;
      finish_share<false, float, BLOCK_N, MULTIPLIERS>(sums, parts, share, rank, c, epilogue, m, n,
                                                       threadIdx.x);
    } else {
      finish_share<Out, BLOCK_N, MULTIPLIERS>(schedule.plain, sums, parts, share, rank, c, epilogue,
                                              m, n, threadIdx.x);
    }
  }
  // No block exits while another may still read its sums.
  if (splits > 1) {
    if (warp == MULTIPLIERS / 32) barrier_cluster_wait();
    barrier_cluster_arrive_relaxed();
    barrier_cluster_wait();
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

  const int64_t tiles_m = ceil_div(gemm.c.rows, BLOCK_M), tiles_n = ceil_div(gemm.c.cols, BLOCK_N);
  const int64_t tiles = tiles_m * tiles_n, k_tiles = ceil_div(gemm.a.cols, BLOCK_K);
  if (tiles > INT32_MAX / 64) return cudaErrorInvalidConfiguration;
  Schedule schedule{static_cast<int>(tiles_m), static_cast<int>(tiles_n),
                    static_cast<int>(gemm.a.cols), 1, 1, is_plain(gemm)};
  // Two K tiles at least to a part, and no more parts than SMs; beyond MOST_PARTIALS the sums cost
  // more than the SMs bring.
  const int parts = static_cast<int>(
      std::max<int64_t>(1, std::min({sms / tiles, k_tiles / 2, int64_t{MOST_PARTIALS}})));
  schedule.groups = static_cast<int>(ceil_div(parts, std::min(MOST_SPLITS, MAX_CLUSTER)));
  schedule.splits = parts / schedule.groups;
  if (const Plan plan = plan_of(asked); plan.splits > 0) {
    schedule.splits = plan.splits;
    schedule.groups = plan.groups;
  }
  if (int64_t{schedule.splits} * schedule.groups > std::max<int64_t>(k_tiles, 1))
    return cudaErrorInvalidConfiguration;  // a split of K would be empty

  const Rows c = rows_of(gemm.c, gemm.out);
  const auto epilogue = epilogue_of<float>(gemm);
  const int64_t pitch = ceil_div(c.cols, 4) * 4, group_stride = c.rows * pitch;
  Rows sums = c;
  if (schedule.groups > 1) {
    Matrix lent{};
    error = lend_sums(gemm, c.rows, pitch, schedule.groups, stream, &lent);
    if (error != cudaSuccess) return error;
    sums = {lent.data, pitch, 1, c.rows, c.cols, true};
  }
  error = with_types_and_majors(gemm, a_major, b_major, [&](auto in, auto out, auto a, auto b) {
    return launch_clusters(split_k<decltype(in), decltype(out), a, b>,
                           static_cast<unsigned>(tiles * schedule.groups), schedule.splits,
                           dim3(THREADS), SHARED_BYTES, stream, a_map, b_map, sums, group_stride,
                           epilogue, schedule);
  });
  if (error != cudaSuccess || schedule.groups == 1) return error;
  return launch_add_partials(gemm, sums, group_stride, schedule.groups, stream);
}
