// C[M, N] = A[M, K] B[K, N] with M up to 128 (or N, by C^T = B^T A^T): B streams past, once.
//
// ADDS           the operands change places: 64 columns of B are wgmma's 64 rows and the few rows
//                of A its narrow n, so that little is multiplied in vain. What counts is how fast B
//                arrives: a cluster divides K, so that few columns occupy most SMs, and its sums
//                meet in shared memory; the next kernel starts while this one ends.
// STILL MISSING  with 65 rows and more A comes out of the L2 again for every BLOCK_N columns of B,
//                and the L2 is the limit, not the memory: blocks side by side could share it.
//
// grid       one cluster per BLOCK_N columns of C, 64 or 128
// cluster    1 to MOST_SPLITS blocks, each of which multiplies its part of K
// block      a producer warp and one consumer warpgroup step through K by BLOCK_K, over a ring of
//            up to MOST_STAGES stages, each BLOCK_N x 128 bytes of B and TILE_M x 128 of A
// warpgroup  BLOCK_N / 64 x wgmma 64 x TILE_M x 16: C^T; TILE_M is 16, 64 or 128; at most 128
//            accumulators a thread
#include <algorithm>

#include "cluster_reduce.cuh"
#include "order.cuh"
#include "wgmma_narrow.cuh"
#include "wgmma_tile.cuh"

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

constexpr int MOST_M = 128;
constexpr int BLOCK_K = 64;
constexpr int MOST_SPLITS = 8;
constexpr int MOST_STAGES = 16;
constexpr int CONSUMERS = 128;  // threads; the producer warp follows them
constexpr int THREADS = CONSUMERS + 32;

// A tile of C^T: BLOCK_N columns of B by TILE_M rows of A.
template <int TILE_M, int BLOCK_N>
struct Shape {
  static constexpr uint32_t B_BYTES = BLOCK_N * BLOCK_K * 2;
  static constexpr uint32_t STAGE_BYTES = B_BYTES + TILE_M * BLOCK_K * 2;
  // The sums take the ring's place at the end, in either orientation.
  static constexpr uint32_t SUM_BYTES = 4 * std::max(TILE_M * pitch_of(BLOCK_N),
                                                     BLOCK_N * pitch_of(TILE_M));

  // As many stages as `bytes` have room for, and the sums with what a cluster sends.
  static int stages(uint32_t bytes) {
    const uint32_t least = (2 * SUM_BYTES - 1) / STAGE_BYTES + 1;
    return std::min<uint32_t>(std::max((bytes - 1024) / STAGE_BYTES, least), MOST_STAGES);
  }
};

template <typename In, Major A, Major B, int TILE_M>
__device__ __forceinline__ void multiply(float (&d)[TILE_M / 2], uint64_t b, uint64_t a,
                                         bool accumulate) {
  if constexpr (TILE_M == 16) {
    wgmma_m64n16k16<In, B, A>(d, b, a, accumulate);
  } else if constexpr (TILE_M == 64) {
    wgmma_m64n64k16<In, B, A>(d, b, a, accumulate);
  } else {
    wgmma_m64n128k16<In, B, A>(d, b, a, accumulate);
  }
}

// `c` has rows of neighbours: those of C, or with c_turned its columns.
template <typename In, typename Out, Major A, Major B, int TILE_M, int BLOCK_N>
__global__ void __launch_bounds__(THREADS)
    skinny(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
           Rows c, bool c_turned, Epilogue<float> epilogue, int K, int splits, int stages) {
  using Tile = Shape<TILE_M, BLOCK_N>;
  constexpr uint32_t STAGE_BYTES = Tile::STAGE_BYTES, B_BYTES = Tile::B_BYTES;
  constexpr int HALVES = BLOCK_N / 64;
  extern __shared__ uint8_t shared[];
  __shared__ uint64_t barriers[2 * MOST_STAGES + 1];
  const uint32_t ring = (shared_address(shared) + 1023) / 1024 * 1024;
  const uint32_t full = shared_address(barriers), empty = full + 8 * MOST_STAGES;
  const uint32_t received = empty + 8 * MOST_STAGES;

  const int rank = splits > 1 ? cluster_ctarank() : 0;
  const int n = blockIdx.x / splits * BLOCK_N;
  const int64_t k_tiles = (K - 1) / BLOCK_K + 1;
  const int first = k_tiles * rank / splits, count = k_tiles * (rank + 1) / splits - first;

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < stages; ++stage) {
      mbarrier_init(full + 8 * stage, 1);
      mbarrier_init(empty + 8 * stage, CONSUMERS / 32);
    }
    mbarrier_init(received, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  float* sums = reinterpret_cast<float*>(shared + (ring - shared_address(shared)));

  const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0);
  float d[HALVES][TILE_M / 2];
  if (warp == CONSUMERS / 32) {
    if (threadIdx.x == CONSUMERS) {
      prefetch_tensormap(&a_map);
      for (int i = 0; i < count && i < stages; ++i)
        each_box<B, BLOCK_N>(n, (first + i) * BLOCK_K, [&](uint32_t, int inner, int outer) {
          cp_async_bulk_prefetch_tensor_2d(&b_map, inner, outer);
        });
      griddepcontrol_wait();
      uint32_t stage = 0, phase = 0;
      for (int i = 0; i < count; ++i) {
        mbarrier_try_wait_parity(empty + 8 * stage, phase ^ 1);
        const uint32_t barrier = full + 8 * stage, b_tile = ring + stage * STAGE_BYTES;
        mbarrier_arrive_expect_tx(barrier, STAGE_BYTES);
        each_box<B, BLOCK_N>(n, (first + i) * BLOCK_K, [&](uint32_t at, int inner, int outer) {
          cp_async_bulk_tensor_2d_evict_first(b_tile + at, &b_map, barrier, inner, outer);
        });
        load_tile<A, TILE_M>(b_tile + B_BYTES, &a_map, barrier, 0, (first + i) * BLOCK_K);
        if (++stage == stages) stage = 0, phase ^= 1;
      }
      // Every byte has been asked for: the next kernel may take what room there is.
      griddepcontrol_launch_dependents();
    }
    __syncwarp();
  } else {
    griddepcontrol_wait();
    const bool arrives = threadIdx.x % 32 == 0;
    const uint64_t b_desc = wgmma_descriptor(ring), a_desc = wgmma_descriptor(ring + B_BYTES);
    uint32_t stage = 0, phase = 0;
    for (int i = 0; i < count; ++i) {
      mbarrier_try_wait_parity(full + 8 * stage, phase);
      const uint32_t offset = stage * (STAGE_BYTES >> 4);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < BLOCK_K / MMA_K; ++k)
#pragma unroll
        for (int half = 0; half < HALVES; ++half)
          multiply<In, A, B, TILE_M>(
              d[half],
              b_desc + offset + half * (BYTES_PER_64_MN >> 4) + k * DESCRIPTOR_PER_MMA_K<B>,
              a_desc + offset + k * DESCRIPTOR_PER_MMA_K<A>, i > 0 || k > 0);
      wgmma_commit_group();
      // One group stays in flight; the one before has read its stage, which goes back.
      wgmma_wait_group<1>();
      if (arrives && i > 0)
        mbarrier_arrive(empty + 8 * (stage == 0 ? stages - 1 : stage - 1));
      if (++stage == stages) stage = 0, phase ^= 1;
    }
    wgmma_wait_group<0>();
    bar_sync(1, CONSUMERS);  // all four warps have read the ring: the sums may take its place
    const int step_n = c_turned ? pitch_of(TILE_M) : 1, step_m = c_turned ? 1 : pitch_of(BLOCK_N);
#pragma unroll
    for (int half = 0; half < HALVES; ++half)
      write_sums(sums + half * 64 * step_n, d[half], step_n, step_m);
    fence_proxy_async();
    if (splits == 1) bar_sync(1, CONSUMERS);
  }
  const Share share{c_turned ? min(c.rows - n, BLOCK_N) : c.rows, splits};
  const uint32_t parts = Tile::SUM_BYTES;  // bytes from the sums on
  if (splits > 1) {
    barrier_cluster_arrive();
    barrier_cluster_wait();
    if (threadIdx.x == CONSUMERS) {
      if (c_turned)
        exchange<TILE_M>(ring, ring + parts, received, share, rank);
      else
        exchange<BLOCK_N>(ring, ring + parts, received, share, rank);
    }
  }
  if (warp < CONSUMERS / 32) {
    if (splits > 1) mbarrier_try_wait_parity(received, 0);
    if (c_turned)
      finish_share<true, Out, TILE_M, CONSUMERS>(sums, sums + parts / 4, share, rank, c, epilogue,
                                                 n, 0, threadIdx.x);
    else
      finish_share<true, Out, BLOCK_N, CONSUMERS>(sums, sums + parts / 4, share, rank, c, epilogue,
                                                  0, n, threadIdx.x);
  }
  // No block leaves while another may still read its sums.
  if (splits > 1) {
    barrier_cluster_arrive_relaxed();
    barrier_cluster_wait();
  }
}

// Calls body(major of A, TILE_M, BLOCK_N as integral_constant). An A that is stored transposed
// comes in panels of 64 rows.
template <typename Body>
int with_tile(Major a, int m, int block_n, Body body) {
  constexpr std::integral_constant<Major, Major::K> k;
  constexpr std::integral_constant<Major, Major::MN> mn;
  constexpr std::integral_constant<int, 16> c16;
  constexpr std::integral_constant<int, 64> c64;
  constexpr std::integral_constant<int, 128> c128;
  if (a == Major::MN) return m <= 64 ? body(mn, c64, c64) : body(mn, c128, c128);
  if (block_n == 64)
    return m <= 16 ? body(k, c16, c64) : m <= 64 ? body(k, c64, c64) : body(k, c128, c64);
  return m <= 16 ? body(k, c16, c128) : m <= 64 ? body(k, c64, c128) : body(k, c128, c128);
}

struct Plan {
  int block_n, splits;
  uint32_t bytes;  // of shared memory for a ring
};

// As few blocks to a tile as occupy most SMs; with many rows, which cost the L2 most, two at least.
// Wide tiles where narrow ones would leave a third of the SMs idle, and for rows of long K. A block
// with a long way to go has an SM to itself, others leave room for the next kernel's.
Plan plan_of(int m, int64_t n, int64_t k, Major a, int sms) {
  const int64_t narrow = ceil_div(n, 64), k_tiles = ceil_div(k, BLOCK_K);
  const bool idle = m <= 16 && narrow > sms * 3 / 5 && narrow < sms * 3 / 4;
  const bool wide = a == Major::MN ? m > 64 : idle || (m > 16 && k_tiles >= 256);
  const int64_t tiles = ceil_div(n, wide ? 128 : 64);
  int splits = idle || (m > 64 && tiles <= 2 * sms) ? 2 : 1;
  while (!idle && tiles * splits < sms * 3 / 4 && splits < MOST_SPLITS) ++splits;
  splits = static_cast<int>(std::min<int64_t>(splits, MAX_CLUSTER > 1 ? ceil_div(k_tiles, 2) : 1));
  const int64_t blocks = tiles * splits;
  const bool alone = blocks <= sms && (k_tiles / splits >= 64 || (m > 64 && !wide));
  return {wide ? 128 : 64, splits, (alone ? 200u : blocks <= 3 * sms ? 100u : 54u) * 1024};
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = asked.c.rows <= asked.c.cols ? asked : transposed(asked);
  const Gemm by_rows = with_rows_of_c(gemm);
  const int M = static_cast<int>(gemm.c.rows), K = static_cast<int>(gemm.a.cols);
  if (M > MOST_M) return cudaErrorInvalidValue;
  CUtensorMap a_map, b_map;
  Major a_major, b_major;
  int sms = 0;
  int error =
      operand_map(gemm.a, false, gemm.in, M <= 16 ? 16 : M <= 64 ? 64 : 128, &a_map, &a_major);
  if (error == cudaSuccess) error = multiprocessors(&sms);
  const Plan plan = plan_of(M, gemm.c.cols, K, a_major, sms);
  if (error == cudaSuccess)
    error = operand_map(gemm.b, true, gemm.in, plan.block_n, &b_map, &b_major);
  if (error != cudaSuccess) return error;

  const int64_t tiles = ceil_div(gemm.c.cols, plan.block_n);
  const bool turned = column_major(gemm.c);
  return with_types(gemm, [&](auto in, auto out) {
    return with_tile(a_major, M, plan.block_n, [&](auto a, auto tile_m, auto block_n) {
      const auto start = [&](auto b) {
        using Tile = Shape<tile_m, block_n>;
        const int stages = Tile::stages(plan.bytes);
        return launch_clusters(skinny<decltype(in), decltype(out), a, b, tile_m, block_n>,
                               static_cast<unsigned>(tiles), plan.splits, dim3(THREADS),
                               stages * Tile::STAGE_BYTES + 1024, stream, a_map, b_map,
                               rows_of(by_rows.c, gemm.out), turned, epilogue_of<float>(by_rows),
                               K, plan.splits, stages);
      };
      return b_major == Major::K ? start(std::integral_constant<Major, Major::K>{})
                                 : start(std::integral_constant<Major, Major::MN>{});
    });
  });
}
