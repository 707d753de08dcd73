// Vector clocks: which of the accesses of a cluster's warps are ordered before what a warp does now.
#pragma once

#include "observe.hpp"

namespace tcgemm::simulator {
namespace observe {

// A warp's clock counts its synchronisations. Row w of `seen` has, for each warp of the cluster, its
// last clock whose accesses are ordered before what warp w does now; of `visible` the last one of
// which warp w sees what threads of another block have written. There are rows of the warps that the
// cluster has, and of a cluster of one block `visible` has none.
extern int64_t warp_clock[MAX_CLUSTER_WARPS];
extern std::vector<int64_t> seen, visible;
extern int warps_of_cluster;

// One access packed: clock + 1, warp, lane; 0 is none. MANY: other lanes of the warp did the same. The
// warps of one block need fewer bits than those of a cluster, and leave more to the clock.
constexpr Epoch MANY = 1u << 31;
extern int clock_at;  // the lowest bit of the clock

inline Epoch epoch_of(const Thread& t) {
  return static_cast<Epoch>((warp_clock[t.cluster_warp] + 1) << clock_at | t.cluster_warp << 5 |
                            t.lane);
}
inline int warp_of(Epoch e) { return static_cast<int>((e & ((1u << clock_at) - 1)) >> 5); }
inline int lane_of(Epoch e) { return e & 31; }
inline int64_t clock_of(Epoch e) { return static_cast<int64_t>((e & ~MANY) >> clock_at) - 1; }
inline Thread& thread_of(Epoch e) {
  const int warp = warp_of(e);
  return threads_of.of(warp / warp_count)[static_cast<size_t>(warp % warp_count * 32 + lane_of(e))];
}

inline bool ordered(Epoch e, const Thread& t) {
  const int warp = warp_of(e);
  if (warp == t.cluster_warp)
    return clock_of(e) < warp_clock[warp] || (lane_of(e) == t.lane && !(e & MANY));
  return clock_of(e) <= seen[static_cast<size_t>(t.cluster_warp * warps_of_cluster + warp)];
}

// Whether what a thread of another block wrote then is ordered before, but not made visible.
inline bool hidden(Epoch e, const Thread& t) {
  if (cluster_size == 1 || thread_of(e).rank == t.rank) return false;
  return clock_of(e) > visible[static_cast<size_t>(t.cluster_warp * warps_of_cluster + warp_of(e))];
}

}  // namespace observe
}  // namespace tcgemm::simulator
