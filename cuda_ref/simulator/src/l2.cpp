// The L2 of the GPU that is asked for, as a model: which sectors come from memory.
#include <sys/mman.h>

#include <memory>

#include "observe.hpp"

namespace tcgemm::simulator {
namespace observe {

namespace {

// Sectors in the order of access, for the L2 model: number << 1 | write.
constexpr uint64_t TRACE_ENTRIES = 1ull << 28;
uint32_t* traces;
BlockTrace* block_traces;
uint64_t block_total;
uint64_t trace_bytes;
bool trace_full;
// Of a cluster, whose blocks run in turns: what each block's part of the trace will be.
PerBlock<std::vector<uint32_t>> waiting;

int worker_index() { return static_cast<int>(worker - control->workers); }

// Sectored L2: lines of 128 bytes, 16 ways, least recently used; a written sector is not fetched.
struct L2 {
  static constexpr int WAYS = 16;
  struct Line {
    uint32_t tag;
    uint8_t valid, dirty;  // a bit per sector
    uint64_t used;
  };
  std::vector<Line> lines;
  uint64_t sets, time = 0;
  L2Result& result;

  L2(int64_t bytes, L2Result& result_) : result(result_) {
    sets = std::max<uint64_t>(1, static_cast<uint64_t>(bytes) / 128 / WAYS);
    lines.assign(sets * WAYS, Line{});
  }

  void access(uint32_t entry) {
    const bool write = entry & 1;
    const uint32_t sector = entry >> 1, tag = sector >> 2;
    const uint8_t bit = static_cast<uint8_t>(1u << (sector & 3));
    Line* set = &lines[(tag * 0x9e3779b97f4a7c15ull >> 20) % sets * WAYS];
    Line* line = set;
    bool present = false;
    for (int w = 0; w < WAYS && !present; ++w) {
      if (set[w].valid && set[w].tag == tag) {
        line = &set[w];
        present = true;
      } else if (set[w].used < line->used) {
        line = &set[w];
      }
    }
    if (!present) {
      result.dram_written += 32u * static_cast<unsigned>(__builtin_popcount(line->dirty));
      *line = {tag, 0, 0, 0};
    }
    line->used = ++time;
    if (write) {
      line->dirty |= bit;
    } else {
      ++result.accesses;
      if (line->valid & bit)
        ++result.hits;
      else
        result.dram_read += 32;
    }
    line->valid |= bit;
  }

  void flush() {
    for (const Line& line : lines)
      result.dram_written += 32u * static_cast<unsigned>(__builtin_popcount(line.dirty));
  }
};

// What one launch leaves in the L2, the next finds.
std::unique_ptr<L2> l2_of_run;
bool untraced;

// Blocks start in the order of their numbers, as many at a time as the GPU holds; those that run
// together take turns of 32 sectors.
void model_l2() {
  L2Result& result = control->l2;
  const int64_t block_threads = int64_t(block_dim.x) * block_dim.y * block_dim.z;
  const int64_t shared = static_cast<int64_t>(control->launch.shared_static + dynamic_shared_bytes);
  int64_t per_sm = std::min<int64_t>(32, request.threads_per_sm / block_threads);
  if (shared) per_sm = std::min(per_sm, request.shared_per_sm / (shared + 1024));
  per_sm = std::max<int64_t>(per_sm, 1);
  const uint64_t slots = static_cast<uint64_t>(per_sm * request.sms);
  if (!result.blocks_per_sm) result.blocks_per_sm = per_sm;
  result.waves += static_cast<int64_t>((block_total + slots - 1) / slots);
  untraced |= !traces;
  for (int i = 0; i < control->worker_count; ++i)
    untraced |= control->workers[i].traced == TRACE_ENTRIES;
  if (untraced) return;

  struct Slot {
    const uint32_t *next, *end;
  };
  std::vector<Slot> running;
  uint64_t next_block = 0;
  auto start = [&]() -> Slot {
    const BlockTrace& t = block_traces[next_block++];
    const uint32_t* first = traces + static_cast<uint64_t>(t.worker) * TRACE_ENTRIES + t.first;
    return {first, first + t.count};
  };
  while (next_block < std::min(slots, block_total)) running.push_back(start());
  if (!l2_of_run) l2_of_run = std::make_unique<L2>(request.l2_bytes, result);
  L2& l2 = *l2_of_run;
  while (!running.empty()) {
    for (size_t i = 0; i < running.size();) {
      Slot& slot = running[i];
      for (int n = 0; n < 32 && slot.next < slot.end; ++n) l2.access(*slot.next++);
      if (slot.next < slot.end) {
        ++i;
      } else if (next_block < block_total) {
        slot = start();
        ++i;
      } else {
        running.erase(running.begin() + static_cast<ptrdiff_t>(i));
      }
    }
  }
}

}  // namespace

void start_traces() {
  block_total = uint64_t(grid_dim.x) * grid_dim.y * grid_dim.z;
  if (!request.count || request.l2_bytes <= 0) return;
  const size_t bytes =
      static_cast<size_t>(std::min(request.workers, MAX_WORKERS)) * TRACE_ENTRIES * 4;
  void* map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  void* table = mmap(nullptr, block_total * sizeof(BlockTrace), PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  traces = map == MAP_FAILED || table == MAP_FAILED ? nullptr : static_cast<uint32_t*>(map);
  block_traces = static_cast<BlockTrace*>(table);
  trace_bytes = bytes;
  for (int i = 0; i < MAX_WORKERS; ++i) control->workers[i].traced = 0;
}

void start_block_trace() {
  if (!traces) return;
  if (cluster_size > 1) waiting.now().clear();
  block_traces[block_number] = {worker_index(), 0, worker->traced};
}

static void append(uint32_t entry) {
  if (worker->traced == TRACE_ENTRIES)
    trace_full = true;
  else
    traces[static_cast<uint64_t>(worker_index()) * TRACE_ENTRIES + worker->traced++] = entry;
}

void end_block_trace() {
  if (!traces) return;
  BlockTrace& trace = block_traces[block_number];
  if (cluster_size > 1) {
    trace.first = worker->traced;
    for (uint32_t entry : waiting.now()) append(entry);
  }
  trace.count = static_cast<uint32_t>(worker->traced - trace.first);
}

void trace(uint64_t sector, bool write) {
  if (trace_full || !traces) return;
  const uint32_t entry = static_cast<uint32_t>(sector << 1 | write);
  if (cluster_size > 1)
    waiting.now().push_back(entry);
  else
    append(entry);
}

void model_launch() {
  if (!request.count || request.sms <= 0 || control->stop.load()) return;
  model_l2();
  if (!traces) return;
  munmap(traces, trace_bytes);
  munmap(block_traces, block_total * sizeof(BlockTrace));
  traces = nullptr;
}

void flush_l2() {
  if (!l2_of_run || untraced) return;
  l2_of_run->flush();
  control->l2.modelled = 1;
}

}  // namespace observe
}  // namespace tcgemm::simulator
