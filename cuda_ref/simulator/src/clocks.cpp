// What barriers, mbarriers and copies between the blocks of a cluster order.
#include "clocks.hpp"

namespace tcgemm::simulator {
namespace observe {

int64_t warp_clock[MAX_CLUSTER_WARPS];
int64_t unordered_since[MAX_CLUSTER_WARPS];
int64_t seen[MAX_CLUSTER_WARPS * MAX_CLUSTER_WARPS];
int64_t visible[MAX_CLUSTER_WARPS * MAX_CLUSTER_WARPS];
int warps_of_cluster;

namespace {

// The last time that a warp reached into the memory of a block of its cluster.
struct Touch {
  int64_t clock = -1;
  int lane;
  Site site;
  uint64_t pc;
};
PerBlock<std::array<Touch, MAX_CLUSTER_WARPS>> touched;  // by warp

int64_t* row(int64_t* clocks, int warp) { return clocks + warp * row_length(); }

void join(int64_t* to, const int64_t* from) {
  for (int u = 0; u < warps_of_cluster; ++u) to[u] = std::max(to[u], from[u]);
}

// A check that no longer knew what is ordered would be silent: it stops and says so.
__attribute__((noinline, cold)) void stop_at(int64_t clock) {
  if (!request.check) return;
  report_misuse(Misuse::clocks, 0, {}, clock);
  abandon_block();
}

void count_up(int warp) {
  const int64_t last = cluster_size == 1 ? OneBlock::LAST : Cluster::LAST;
  if (__builtin_expect(++warp_clock[warp] > last, false)) stop_at(warp_clock[warp]);
}

// The warp has synchronised; by the cluster's number.
void tick(int warp) {
  count_up(warp);
  unordered_since[warp] = warp_clock[warp];
}

// At a barrier of the running block: what each of the warps has comes to all of them.
void meet(int64_t* clocks, uint64_t warp_mask) {
  int64_t joined[MAX_CLUSTER_WARPS];
  std::fill(joined, joined + warps_of_cluster, -1);
  const int first = rank_now * warp_count;
  for (int w = 0; w < warp_count; ++w) {
    if (!(warp_mask >> w & 1)) continue;
    join(joined, row(clocks, first + w));
    joined[first + w] = std::max(joined[first + w], warp_clock[first + w]);
  }
  for (int w = 0; w < warp_count; ++w)
    if (warp_mask >> w & 1) std::copy(joined, joined + warps_of_cluster, row(clocks, first + w));
}

}  // namespace

void start_clocks() {
  warps_of_cluster = cluster_size * warp_count;
  std::fill(warp_clock, warp_clock + warps_of_cluster, 0);
  std::fill(unordered_since, unordered_since + warps_of_cluster, 0);
  for (int w = 0; w < warps_of_cluster; ++w) {
    std::fill_n(row(seen, w), warps_of_cluster, -1);
    if (cluster_size > 1) std::fill_n(row(visible, w), warps_of_cluster, -1);
  }
  if (cluster_size == 1) return;
  for (int rank = 0; rank < cluster_size; ++rank) touched.of(rank).fill({});
}

void forget(Clocks& clocks) {
  clocks.seen.assign(static_cast<size_t>(warps_of_cluster), -1);
  if (cluster_size > 1) clocks.visible.assign(static_cast<size_t>(warps_of_cluster), -1);
}

void order_warp(int warp) { tick(rank_now * warp_count + warp); }

void order_block(uint64_t warp_mask) {
  meet(seen, warp_mask);
  if (cluster_size > 1) meet(visible, warp_mask);
  for (int w = 0; w < warp_count; ++w)
    if (warp_mask >> w & 1) tick(rank_now * warp_count + w);
}

void release(const Thread& thread, Clocks& clocks, bool makes_visible) {
  const int warp = thread.cluster_warp;
  const auto add = [warp](std::vector<int64_t>& to, int64_t* from) {
    join(to.data(), row(from, warp));
    to[warp] = std::max(to[warp], warp_clock[warp]);
  };
  add(clocks.seen, seen);
  if (cluster_size > 1 && makes_visible) add(clocks.visible, visible);
  tick(warp);
}

void acquire(const Thread& thread, const Clocks& clocks) {
  join(row(seen, thread.cluster_warp), clocks.seen.data());
  if (cluster_size > 1) join(row(visible, thread.cluster_warp), clocks.visible.data());
}

Epoch issues(const Thread& thread) {
  const Epoch now = epoch_of(thread);
  count_up(thread.cluster_warp);
  return now;
}

void lands(Epoch issued, Clocks& clocks) {
  int64_t& clock = clocks.seen[static_cast<size_t>(warp_of(issued))];
  clock = std::max(clock, clock_of(issued));
}

bool is_ordered(Epoch before, const Thread& thread) { return Cluster::ordered(before, thread); }
Epoch now_of(const Thread& thread) { return epoch_of(thread); }

void touches(int rank, Site site, uint64_t pc) {
  if (!request.check || rank == current->rank) return;
  if (!blocks[rank].alive)
    belongs_to(report_misuse(Misuse::cluster_exit, pc, site, 0), rank);
  const int warp = current->cluster_warp;
  touched.of(rank)[warp] = {warp_clock[warp], current->lane, site, pc};
}

void leaves_cluster() {
  if (!request.check || cluster_size == 1) return;
  const int first = rank_now * warp_count;
  for (int warp = 0; warp < warps_of_cluster; ++warp) {
    const Touch& touch = touched.now()[warp];
    int64_t last = -1;
    for (int w = first; w < first + warp_count; ++w) last = std::max(last, row(seen, w)[warp]);
    if (touch.clock <= last) continue;
    Finding* const f = report_misuse(Misuse::cluster_exit, touch.pc, touch.site, 0);
    belongs_to(f, rank_now);
    if (f) f->at = position_of(threads_of.of(warp / warp_count)[warp % warp_count * 32 + touch.lane]);
  }
}

}  // namespace observe
}  // namespace tcgemm::simulator
