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

}  // namespace tcgemm
