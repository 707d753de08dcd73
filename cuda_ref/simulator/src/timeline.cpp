// When each warp of a block does what, by a logical clock: what `tcgemm simulate --trace` writes.
//
// A warp has a clock of its own, which counts in ticks. An operation of the warp takes a tick (a
// request to memory, the issue of a copy or of a wgmma), a product on the tensor cores as many as it
// has parts of 16 x 8 x 32 bytes of K. Where a warp waits for others, its clock goes on to theirs: at
// a barrier to the last one to arrive, at an mbarrier to the arrival, or to the bytes, that ended the
// phase. What is fetched from global memory is there request.timeline_latency ticks after it was asked
// for. So an operation's time is the length of the longest chain of operations before it, whatever
// the order in which the simulator runs warps. It is no time of a GPU.
#include <cstdio>
#include <deque>

#include "observe.hpp"

namespace tcgemm::simulator {
namespace observe {

namespace {

struct Event {
  Phase phase;
  uint64_t start, end, count;
  int line;
};

struct Track {
  Event last;  // grows as long as the same goes on
  bool open;
};

struct WarpClock {
  uint64_t now, loads;           // loads: when all that was loaded so far is there
  uint64_t uncommitted;          // the same of copies of no group yet
  std::deque<uint64_t> groups;   // and of each committed group, oldest first
  uint64_t tensor_cores;         // when these have done all that was issued
};

constexpr int TRACKS = 2;  // of a warp: its own, and its asynchronous products
struct BlockTimeline {
  Track tracks[MAX_WARPS][TRACKS];
  WarpClock clocks[MAX_WARPS];
};
PerBlock<BlockTimeline> timelines;
Track (*tracks)[TRACKS];  // of the running block
WarpClock* clocks;
FILE* file;
int launch_number = -1;
uint64_t launch_start, launch_end;
int64_t blocks_begun;
bool on;  // for the running cluster

void close(int warp, int track) {
  Track& t = tracks[warp][track];
  if (t.open)
    std::fprintf(file, "%d %llu %d %d %d %llu %llu %llu %d\n", launch_number,
                 static_cast<unsigned long long>(block_number), warp, track,
                 static_cast<int>(t.last.phase), static_cast<unsigned long long>(t.last.start),
                 static_cast<unsigned long long>(t.last.end),
                 static_cast<unsigned long long>(t.last.count), t.last.line);
  t.open = false;
}

void add(int warp, int track, const Event& event) {
  Track& t = tracks[warp][track];
  if (t.open && t.last.phase == event.phase && t.last.end == event.start) {
    t.last.end = event.end;
    t.last.count += event.count;
    return;
  }
  close(warp, track);
  t = {event, true};
}

}  // namespace

void start_launch_timeline() {
  if (!request.timeline_path) return;
  if (!file) file = std::fopen(request.timeline_path, "w");
  ++launch_number;
  launch_start = launch_end;
  blocks_begun = 0;
}

void enter_block_timeline() {
  tracks = timelines.now().tracks;
  clocks = timelines.now().clocks;
}

void start_block_timeline() {
  if (rank_now == 0) on = file && blocks_begun < request.timeline_blocks;
  ++blocks_begun;
  if (!on) return;
  enter_block_timeline();
  for (int w = 0; w < warp_count; ++w) clocks[w] = {launch_start, 0, 0, {}, 0};
}

void end_block_timeline() {
  if (!on) return;
  for (int w = 0; w < warp_count; ++w) {
    for (int track = 0; track < TRACKS; ++track) close(w, track);
    launch_end = std::max(launch_end, clocks[w].now);
  }
  std::fflush(file);
  if (rank_now == cluster_size - 1) on = false;
}

uint64_t clock_of(int warp) { return on ? clocks[warp].now : 0; }

void passes(int warp, Phase phase, uint64_t ticks, int line) {
  if (!on) return;
  WarpClock& c = clocks[warp];
  add(warp, 0, {phase, c.now, c.now + ticks, 1, line});
  c.now += ticks;
}

void waits(int warp, Phase phase, uint64_t until, int line) {
  if (on && until > clocks[warp].now) passes(warp, phase, until - clocks[warp].now, line);
}

void waits_for_each_other(uint64_t warp_mask, uint64_t least, int line) {
  if (!on) return;
  for (int w = 0; w < warp_count; ++w)
    if (warp_mask >> w & 1) least = std::max(least, clocks[w].now);
  for (int w = 0; w < warp_count; ++w)
    if (warp_mask >> w & 1) waits(w, Phase::wait_barrier, least, line);
}

uint64_t asks_for_copy(int warp, Phase phase, int line) {
  if (!on) return 0;
  passes(warp, phase, 1, line);
  return clocks[warp].now + static_cast<uint64_t>(request.timeline_latency);
}

// Whole parts of 16 x 8 results and 32 bytes of K.
static uint64_t tensor_ticks(int m, int n, int k_bytes) {
  return std::max(1, m * n * k_bytes / (16 * 8 * 32));
}

void multiplies(int warp, int m, int n, int k_bytes, int line) {
  if (!on) return;
  waits(warp, Phase::wait_loads, clocks[warp].loads, 0);
  passes(warp, Phase::mma, tensor_ticks(m, n, k_bytes), line);
}

uint64_t issues_wgmma(int warp, int n, int line) {
  if (!on) return 0;
  WarpClock& c = clocks[warp];
  passes(warp, Phase::wgmma, 1, line);
  const uint64_t start = std::max(c.tensor_cores, c.now);
  c.tensor_cores = start + tensor_ticks(16, n, 32);
  add(warp, 1, {Phase::tensor_cores, start, c.tensor_cores, 1, line});
  return c.tensor_cores;
}

bool timeline_runs() { return on; }

void request_passes(int warp, const Entry& first) {
  if (!on) return;
  WarpClock& c = clocks[warp];
  switch (first.kind) {
    case Entry::commit:
      c.groups.push_back(c.uncommitted);
      c.uncommitted = 0;
      return;
    case Entry::await:
      while (c.groups.size() > first.address) {
        waits(warp, Phase::wait_copies, c.groups.front(), 0);
        c.groups.pop_front();
      }
      return;
    case Entry::copy:
    case Entry::copy_through_l1:
      c.uncommitted = std::max(c.uncommitted, asks_for_copy(warp, Phase::copy, 0));
      return;
    case Entry::access: break;
  }
  const bool shared = first.space == SHARED;
  if (first.write) waits(warp, Phase::wait_loads, c.loads, 0);
  if (shared)
    passes(warp, first.write ? Phase::shared_store : Phase::shared_load, 1, 0);
  else if (first.write)
    passes(warp, Phase::store, 1, 0);
  else
    c.loads = asks_for_copy(warp, Phase::load, 0);
}

}  // namespace observe
}  // namespace tcgemm::simulator
