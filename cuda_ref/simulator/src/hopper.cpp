// mbarriers and bulk tensor copies.
#include <algorithm>
#include <deque>

#include "hopper_internal.hpp"

namespace tcgemm::simulator {

namespace {

struct Load {
  uint32_t shared, barrier;
  CUtensorMap map;
  int inner, outer, batch;
  int32_t issuer;
  uint64_t pc;
  uint64_t there;  // when, by the clock of timeline.cpp
};

struct Mbarrier {
  uint32_t address;
  int64_t count, pending, bytes;  // arrivals of a phase; those and the bytes still to come
  uint32_t phase;
  std::vector<Load> loads;  // issued, not landed
  int64_t clocks[MAX_WARPS];
  uint64_t gathered, opened;  // timeline.cpp: the last arrival so far, and that of the last phase
};
// A deque, so that a waiting thread's barrier stays where it is.
std::deque<Mbarrier> mbarriers;

struct Store {
  CUtensorMap map;
  uint32_t shared;
  int inner, outer, batch;
  uint64_t pc;
};
struct Stores {
  std::vector<Store> issued;
  std::vector<size_t> groups;  // stores in each committed group, oldest first
  size_t uncommitted = 0;
} bulk_stores[MAX_THREADS];

constexpr uint32_t ROW_BYTES = 128;  // of a box in shared memory, as wide as the swizzle

// Calls body(offset in shared memory) for each 16 bytes of a box.
template <typename Body>
void each_unit(const CUtensorMap& map, Body body) {
  for (uint32_t row = 0; row < map.box_outer; ++row)
    for (uint32_t at = 0; at < map.box_inner * map.item_bytes; at += 16)
      body(row * ROW_BYTES + at);
}

Mbarrier& barrier_at(uint32_t address, Site site, uint64_t pc) {
  for (Mbarrier& b : mbarriers)
    if (b.address == address) return b;
  report_misuse(Misuse::no_mbarrier, pc, site, address);
  abandon_block();
}

void complete(Mbarrier& b) {
  if (b.pending != 0 || b.bytes != 0) return;
  b.phase ^= 1;
  b.pending = b.count;
  b.opened = b.gathered;
}

// The first element of matrix `batch` of a tensor.
char* matrix_of(const CUtensorMap& map, int batch) {
  return static_cast<char*>(map.data) +
         static_cast<int64_t>(batch) * static_cast<int64_t>(map.batch_pitch_bytes);
}

// To 10 bits of mantissa, ties to even; Inf and NaN stay.
void round_to_tf32(char* at) {
  uint32_t x;
  std::memcpy(&x, at, 4);
  if ((x & 0x7f800000) != 0x7f800000) x = (x + 0xfff + (x >> 13 & 1)) & 0xffffe000;
  std::memcpy(at, &x, 4);
}

void land(Mbarrier& b, const Load& load) {
  const CUtensorMap& map = load.map;
  const int64_t unit = 16 / map.item_bytes;
  as_thread(threads[load.issuer], [&] {
    for (uint32_t row = 0; row < map.box_outer; ++row) {
      const int64_t outer = int64_t(load.outer) + row;
      const bool row_inside = outer >= 0 && static_cast<uint64_t>(outer) < map.outer;
      const char* line =
          matrix_of(map, load.batch) + outer * static_cast<int64_t>(map.pitch_bytes);
      int64_t inside = 0, first = 0;
      for (uint32_t at = 0; at < map.box_inner; at += static_cast<uint32_t>(unit)) {
        const int64_t inner = int64_t(load.inner) + at;
        const uint32_t bytes = row * ROW_BYTES + at * map.item_bytes;
        char* to = static_cast<char*>(shared_pointer(swizzled(load.shared + bytes)));
        std::memset(to, 0, 16);
        int64_t low = std::max<int64_t>(0, -inner);
        int64_t high = std::min<int64_t>(unit, static_cast<int64_t>(map.inner) - inner);
        if (row_inside && low < high) {
          if (inside == 0) first = inner + low;
          inside += high - low;
          std::memcpy(to + low * map.item_bytes, line + (inner + low) * map.item_bytes,
                      static_cast<size_t>((high - low) * map.item_bytes));
          if (map.rounds)
            for (int at_word = 0; at_word < 16; at_word += 4) round_to_tf32(to + at_word);
        }
        if constexpr (OBSERVE) observe::async_lands({to, nullptr, 16, 0, false, load.pc});
      }
      if constexpr (OBSERVE) {
        if (inside)
          observe::bulk_global(line + first * map.item_bytes, inside * map.item_bytes, false,
                               load.pc);
      }
    }
  });
  if constexpr (OBSERVE) observe::release(threads[load.issuer].warp, b.clocks);
  b.gathered = std::max(b.gathered, load.there);
  b.bytes -= int64_t(map.box_inner) * map.box_outer * map.item_bytes;
}

struct Wait {
  Mbarrier* barrier;
  uint32_t parity;
};

bool phase_over(void* argument) {
  const Wait& wait = *static_cast<Wait*>(argument);
  Mbarrier& b = *wait.barrier;
  if (b.phase == wait.parity) {
    const std::vector<Load> loads = std::move(b.loads);
    b.loads.clear();
    for (const Load& load : loads) land(b, load);
    if (!loads.empty()) complete(b);
  }
  return b.phase != wait.parity;
}

void store(const Store& s) {
  const CUtensorMap& map = s.map;
  const uint32_t unit = 16 / map.item_bytes;
  for (uint32_t row = 0; row < map.box_outer; ++row) {
    const char* written = nullptr;
    int64_t written_bytes = 0;
    for (uint32_t at = 0; at < map.box_inner; at += unit) {
      const uint32_t bytes = row * ROW_BYTES + at * map.item_bytes;
      char* from = static_cast<char*>(shared_pointer(swizzled(s.shared + bytes)));
      if constexpr (OBSERVE) observe::async_read_ends(from, 16, s.pc);
      // Clipped to whole units: the last one writes past the extent, as on the GPU.
      const int64_t inner = int64_t(s.inner) + at, outer = int64_t(s.outer) + row;
      if (inner < 0 || outer < 0 || static_cast<uint64_t>(inner) >= map.inner ||
          static_cast<uint64_t>(outer) >= map.outer)
        continue;
      char* to = matrix_of(map, s.batch) + outer * static_cast<int64_t>(map.pitch_bytes) +
                 inner * map.item_bytes;
      if (!written) written = to;
      written_bytes += 16;
      std::memcpy(to, from, 16);
    }
    if (OBSERVE && written) observe::bulk_global(written, written_bytes, true, s.pc);
  }
}

}  // namespace

void hopper_start_block() {
  mbarriers.clear();
  for (int i = 0; i < thread_count; ++i) bulk_stores[i] = {};
  wgmma_start_block();
}

void hopper_end_thread(Thread& thread) {
  for (const Store& s : bulk_stores[thread.linear].issued) store(s);
  bulk_stores[thread.linear] = {};
  wgmma_end_thread(thread);
}

void mbarrier_init(uint32_t barrier, uint32_t count) {
  for (Mbarrier& b : mbarriers) {
    if (b.address != barrier) continue;
    b.count = b.pending = count;
    b.bytes = b.phase = 0;
    return;
  }
  Mbarrier& b = mbarriers.emplace_back();
  b = {barrier, count, count, 0, 0, {}, {}, 0, 0};
  std::fill(b.clocks, b.clocks + MAX_WARPS, -1);
}

__attribute__((noinline)) void mbarrier_arrive(uint32_t barrier, uint32_t transaction_bytes,
                                               Site site) {
  Mbarrier& b = barrier_at(barrier, site, CALLER);
  if constexpr (OBSERVE) {
    observe::release(current->warp, b.clocks);
    b.gathered = std::max(b.gathered, observe::clock_of(current->warp));
  }
  b.bytes += transaction_bytes;
  --b.pending;
  complete(b);
}

__attribute__((noinline)) void mbarrier_wait(uint32_t barrier, uint32_t parity, Site site) {
  Wait wait{&barrier_at(barrier, site, CALLER), parity};
  wait_until(phase_over, &wait, "mbarrier", site);
  if constexpr (OBSERVE) {
    observe::acquire(current->warp, wait.barrier->clocks);
    observe::waits(current->warp, observe::Phase::wait_mbarrier, wait.barrier->opened, site.line);
  }
}

__attribute__((noinline)) void bulk_load(uint32_t shared, const CUtensorMap* map, uint32_t barrier,
                                         int inner, int outer, int batch, Site site) {
  const uint64_t pc = CALLER;
  Mbarrier& b = barrier_at(barrier, site, pc);
  if constexpr (OBSERVE) {
    if (request.check && shared % 128) report_misuse(Misuse::box_address, pc, site, shared);
    each_unit(*map, [&](uint32_t at) {
      observe::async_write_begins(
          static_cast<char*>(shared_pointer(swizzled(shared + at))), 16, pc);
    });
  }
  uint64_t there = 0;
  if constexpr (OBSERVE)
    there = observe::asks_for_copy(current->warp, observe::Phase::bulk_load, site.line);
  b.loads.push_back({shared, barrier, *map, inner, outer, batch, current->linear, pc, there});
}

__attribute__((noinline)) void bulk_store(const CUtensorMap* map, uint32_t shared, int inner,
                                          int outer, int batch, Site site) {
  const uint64_t pc = CALLER;
  if constexpr (OBSERVE) {
    if (request.check && shared % 128) report_misuse(Misuse::box_address, pc, site, shared);
    observe::passes(current->warp, observe::Phase::bulk_store, 1, site.line);
    each_unit(*map, [&](uint32_t at) {
      observe::async_read_begins(static_cast<char*>(shared_pointer(swizzled(shared + at))), 16,
                                 site, pc);
    });
  }
  Stores& queue = bulk_stores[current->linear];
  queue.issued.push_back({*map, shared, inner, outer, batch, pc});
  ++queue.uncommitted;
}

void fence_proxy_async() {
  if constexpr (OBSERVE) observe::fence_proxy();
}

void bulk_commit() {
  Stores& queue = bulk_stores[current->linear];
  queue.groups.push_back(queue.uncommitted);
  queue.uncommitted = 0;
}

void bulk_wait_read(int pending) {
  Stores& queue = bulk_stores[current->linear];
  while (queue.groups.size() > static_cast<size_t>(pending)) {
    for (size_t i = 0; i < queue.groups.front(); ++i) store(queue.issued[i]);
    queue.issued.erase(queue.issued.begin(),
                       queue.issued.begin() + static_cast<ptrdiff_t>(queue.groups.front()));
    queue.groups.erase(queue.groups.begin());
  }
}

}  // namespace tcgemm::simulator
