// How the threads of a block are laid over columns of C and over K where there are few rows, and
// how their sums are added: for kernels whose lanes multiply what they load.
#pragma once

#include <algorithm>
#include <type_traits>

#include "ptx/sm90.cuh"
#include "tile/divisor.cuh"
#include "tile/order.cuh"

namespace tcgemm {

constexpr int LOG_COLS = 2, COLS = 1 << LOG_COLS;  // columns of C of a thread
constexpr int LOG_WARPS = 3, ALL_WARPS = 1 << LOG_WARPS, THREADS = 32 * ALL_WARPS;

constexpr int64_t MOST = INT32_MAX - 65536;  // columns, and elements along K

// A, or B by its columns: element (mn, k) is at data + mn * mn_stride + k * k_stride.
struct Side {
  const void* data;
  int64_t mn_stride, k_stride, batch_stride;
};

inline Side side_of_a(const Matrix& x) {
  return {x.data, x.row_stride, x.col_stride, x.batch_stride};
}
inline Side side_of_b(const Matrix& x) {
  return {x.data, x.col_stride, x.row_stride, x.batch_stride};
}

// How threads are laid over columns and K: by powers of two, which need no division.
struct Lanes {
  int log_n;      // lanes of a warp along N; the others lie along K
  int log_warps;  // warps of a block that divide K; the others lie along N
  int splits;     // blocks that divide K
  bool n_first;   // whether neighbouring lanes are neighbours along N
  int tiles_m, tiles_n;  // of a matrix
  Divisor by_splits, by_tiles_m, by_tiles_n;

  __host__ __device__ int log_k() const { return 5 - log_n; }
  __host__ __device__ int log_columns() const { return LOG_COLS + log_n + LOG_WARPS - log_warps; }
};

// The least number of doublings, up to `most`, by which 1 becomes `least`.
inline int log2_of(int64_t least, int most) {
  int found = 0;
  while (found < most && int64_t{1} << found < least) ++found;
  return found;
}

// Those of the plan; without one as many warps along K as have one of so many `loads` each.
inline Lanes lanes_of(const Plan& plan, int64_t tiles_m, int64_t N, int64_t loads, bool n_first) {
  int log_n = n_first ? log2_of(ceil_div(N, COLS), 5) : 5 - log2_of(loads, 5);
  int log_warps = log2_of(ceil_div(loads, 32 >> log_n), LOG_WARPS);
  if (plan.warps > 0) {
    log_warps = log2_of(plan.warps, LOG_WARPS);
    log_n = log2_of(plan.block_n >> (LOG_COLS + LOG_WARPS - log_warps), 5);
  }
  Lanes lanes{log_n, log_warps, std::clamp(plan.splits, 1, sm90::MAX_CLUSTER), n_first};
  lanes.tiles_m = static_cast<int>(tiles_m);
  lanes.tiles_n = static_cast<int>(ceil_div(N, int64_t{1} << lanes.log_columns()));
  lanes.by_splits = Divisor::of(lanes.splits);
  lanes.by_tiles_m = Divisor::of(lanes.tiles_m), lanes.by_tiles_n = Divisor::of(lanes.tiles_n);
  return lanes;
}

// Calls body(rows) with the least power of two, up to MOST, that M rows fit in, as a constant.
template <int MOST, int ROWS = 1, typename Body>
int with_rows(int64_t M, Body body) {
  if constexpr (ROWS < MOST)
    if (M > ROWS) return with_rows<MOST, 2 * ROWS>(M, body);
  return body(std::integral_constant<int, ROWS>{});
}

// Where a thread stands: its block among those that divide K, the product of the batch, the first
// row and column of the block; its lane along N and along K, its warp among those that divide K,
// and how far behind n0 the columns of its warp begin.
struct Place {
  int rank, batch, m0, n0, of_n, of_k, of_warps, own;
};

template <int ROWS>  // of a block
__device__ __forceinline__ Place place_of(const Lanes& lanes) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int rank = lanes.splits > 1 ? sm90::cluster_ctarank() : 0;
  const int tile = lanes.by_splits.quotient(blockIdx.x);
  const int above = lanes.by_tiles_n.quotient(tile), batch = lanes.by_tiles_m.quotient(above);
  const int m0 = (above - batch * lanes.tiles_m) * ROWS;
  const int n0 = (tile - above * lanes.tiles_n) << lanes.log_columns();
  const int log_low = lanes.n_first ? lanes.log_n : lanes.log_k();
  const int low = lane & ((1 << log_low) - 1), high = lane >> log_low;
  const int of_n = lanes.n_first ? low : high, of_k = lanes.n_first ? high : low;
  const int of_warps = warp & ((1 << lanes.log_warps) - 1);
  const int own = warp >> lanes.log_warps << (LOG_COLS + lanes.log_n);
  return {rank, batch, m0, n0, of_n, of_k, of_warps, own};
}

// What a lane still holds of its values: from number `first` on so many that are `left`; or none,
// where they are not `mine`.
struct Held {
  int first, left;
  bool mine;
};

// A step of add_lanes, and those that follow, between lanes that are `other` places apart. Each is
// a function of its own: of one large loop over all of them the compiler keeps some loops, and then
// the sums lie in memory.
template <int STEP, typename Real, int VALUES>
__device__ __forceinline__ void add_halves(Real (&sums)[VALUES], int nearest, int other,
                                           Held& held) {
  constexpr int HAD = VALUES >> STEP;
  if (other >= nearest) {
    const bool upper = (threadIdx.x & other) != 0;
    if constexpr (HAD > 1) {
#pragma unroll
      for (int i = 0; i < HAD / 2; ++i) {
        const Real low = sums[i], high = sums[HAD / 2 + i];
        sums[i] = (upper ? high : low) + __shfl_xor_sync(0xFFFFFFFF, upper ? low : high, other);
      }
      held.left = HAD / 2;
      if (upper) held.first += held.left;
    } else {
      sums[0] += __shfl_xor_sync(0xFFFFFFFF, sums[0], other);
      held.mine = held.mine && !upper;
    }
  }
  if constexpr (STEP < 4) add_halves<STEP + 1>(sums, nearest, other / 2, held);
}

// Adds the sums of a warp's lanes that are `nearest`, 2 nearest, ... places apart, `of` of them in
// all: a lane gives away half of its values in each step, and the other lane the other half. Calls
// keep(value, sum) in one lane for each value.
template <typename Real, int VALUES, typename Keep>
__device__ __forceinline__ void add_lanes(Real (&sums)[VALUES], int nearest, int of, Keep keep) {
  Held held{0, VALUES, true};
  add_halves<0>(sums, nearest, nearest * of / 2, held);
#pragma unroll
  for (int i = 0; i < VALUES; ++i)
    if (held.mine && i < held.left) keep(held.first + i, sums[i]);
}

// The sum at the same place in block `cta` of the cluster.
template <typename Real>
__device__ __forceinline__ Real of_cluster(const Real* shared, int cta) {
  const uint32_t at = sm90::shared_address(shared);
  const float low = sm90::ld_shared_cluster(at, cta);
  if constexpr (sizeof(Real) == 4) return low;
  const float2 words = make_float2(low, sm90::ld_shared_cluster(at + 4, cta));
  return reinterpret_cast<const Real&>(words);
}

// Adds the sums that warps which divide K have left in shared memory, `each` of each of them, then
// those of blocks that do, in one order. Calls store(i, sum) in one thread of them for each sum.
template <typename Real, typename Store>
__device__ __forceinline__ void add_warps_and_blocks(Real* shared, int each, const Lanes& lanes,
                                                     int rank, Store store) {
#pragma unroll 1
  for (int i = threadIdx.x; i < each; i += THREADS) {
    Real of[ALL_WARPS];
#pragma unroll
    for (int w = 0; w < ALL_WARPS; ++w)
      of[w] = w >> lanes.log_warps == 0 ? shared[w * each + i] : 0;
    const Real sum = ((of[0] + of[1]) + (of[2] + of[3])) + ((of[4] + of[5]) + (of[6] + of[7]));
    if (lanes.splits == 1)
      store(i, sum);
    else
      shared[i] = sum;
  }
  if (lanes.splits == 1) return;
  sm90::barrier_cluster_arrive();
  sm90::barrier_cluster_wait();
  for (int i = rank * THREADS + threadIdx.x; i < each; i += lanes.splits * THREADS) {
    Real sum = 0;
#pragma unroll 4
    for (int p = 0; p < lanes.splits; ++p) sum += of_cluster(shared + i, p);
    store(i, sum);
  }
  // No block exits while another may still read its sums.
  sm90::barrier_cluster_arrive_relaxed();
  sm90::barrier_cluster_wait();
}

}  // namespace tcgemm
