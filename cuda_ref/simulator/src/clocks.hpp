// Vector clocks: which of the accesses of a cluster's warps are ordered before what a warp does now.
#pragma once

#include "observe.hpp"

namespace tcgemm::simulator {
namespace observe {

// A warp's clock counts its synchronisations. Row w of `seen` has, for each warp of the cluster, its
// last clock whose accesses are ordered before what warp w does now; of `visible` the last one of
// which warp w sees what threads of another block have written. Of a cluster of one
// block `visible` is not kept.
extern int64_t warp_clock[MAX_CLUSTER_WARPS];
// Of a cluster: the clock since when the lanes of the warp are not ordered among themselves. A copy's
// issue is a new clock to other warps, and no barrier to its own.
extern int64_t unordered_since[MAX_CLUSTER_WARPS];
extern int64_t seen[MAX_CLUSTER_WARPS * MAX_CLUSTER_WARPS];
extern int64_t visible[MAX_CLUSTER_WARPS * MAX_CLUSTER_WARPS];
extern int warps_of_cluster;

// One access packed: clock + 1, warp, lane; 0 is none. MANY: other lanes of the warp did the same.
constexpr Epoch MANY = 1u << 31;
inline int lane_of(Epoch e) { return e & 31; }

// The warps of one block need fewer bits than those of a cluster, and leave more to the clock.
template <int WARPS>
struct Layout {
  static constexpr int CLOCK_AT = WARPS == MAX_WARPS ? 10 : 13;
  static_assert(WARPS << 5 == 1 << CLOCK_AT);
  static constexpr int64_t LAST = (int64_t{1} << (31 - CLOCK_AT)) - 2;  // clock that fits

  static Epoch epoch_of(const Thread& t) {
    return static_cast<Epoch>((warp_clock[t.cluster_warp] + 1) << CLOCK_AT | t.cluster_warp << 5 |
                              t.lane);
  }
  static int warp_of(Epoch e) { return e >> 5 & (WARPS - 1); }
  // The first clock of the warp's that its lanes share with what they do now.
  static int64_t interval_of(int warp) {
    return WARPS == MAX_WARPS ? warp_clock[warp] : unordered_since[warp];
  }
  static int64_t clock_of(Epoch e) { return static_cast<int64_t>((e & ~MANY) >> CLOCK_AT) - 1; }
  // Before what the thread does now.
  static bool ordered(Epoch e, const Thread& t) {
    const int warp = warp_of(e);
    if (warp == t.cluster_warp)
      return clock_of(e) < interval_of(warp) || (lane_of(e) == t.lane && !(e & MANY));
    return clock_of(e) <= seen[t.cluster_warp * WARPS + warp];
  }
  // Whether what a thread of another block wrote then is ordered before, but not made visible.
  static bool hidden(Epoch e, const Thread& t) {
    const int warp = warp_of(e);
    return WARPS > MAX_WARPS && warp / warp_count != t.rank &&
           clock_of(e) > visible[t.cluster_warp * WARPS + warp];
  }
};
using OneBlock = Layout<MAX_WARPS>;
using Cluster = Layout<MAX_CLUSTER_WARPS>;

// Of the running cluster, where nothing hangs on how long it takes.

inline int row_length() { return cluster_size == 1 ? MAX_WARPS : MAX_CLUSTER_WARPS; }
inline Epoch epoch_of(const Thread& t) {
  return cluster_size == 1 ? OneBlock::epoch_of(t) : Cluster::epoch_of(t);
}
inline int warp_of(Epoch e) {
  return cluster_size == 1 ? OneBlock::warp_of(e) : Cluster::warp_of(e);
}
inline int64_t clock_of(Epoch e) {
  return cluster_size == 1 ? OneBlock::clock_of(e) : Cluster::clock_of(e);
}
inline Thread& thread_of(Epoch e) {
  const int warp = warp_of(e);
  return threads_of.of(warp / warp_count)[static_cast<size_t>(warp % warp_count * 32 + lane_of(e))];
}

}  // namespace observe
}  // namespace tcgemm::simulator
