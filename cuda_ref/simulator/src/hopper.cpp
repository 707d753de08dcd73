// mbarriers and bulk copies, within a block and to the others of its cluster.
#include <algorithm>
#include <deque>

#include "hopper_internal.hpp"

namespace tcgemm::simulator {

namespace {

struct Load {
  uint32_t shared;
  CUtensorMap map;
  int inner, outer, batch;
  const Thread* issuer;
  Epoch issued;  // of a cluster of several blocks
  bool fetches;  // of a multicast's destinations one does, for all of them
  Site site;
  uint64_t pc;
  uint64_t there;  // when, by the clock of timeline.cpp
};

// From one block's shared memory to another's.
struct Transfer {
  uint32_t to, from, bytes;
  const Thread* issuer;
  Epoch issued;
  Site site;
  uint64_t pc;
  uint64_t there;
};

struct Mbarrier {
  uint32_t address;
  int64_t count, pending, bytes;  // arrivals of a phase; those and the bytes still to come
  uint32_t phase;
  std::vector<Load> loads;  // issued, not landed
  std::vector<Transfer> transfers;
  Epoch initialised;
  Clocks clocks;
  uint64_t gathered, opened;  // timeline.cpp: the last arrival so far, and that of the last phase
};
// A deque, so that a waiting thread's barrier stays where it is.
PerBlock<std::deque<Mbarrier>> mbarriers;

Mbarrier* find_barrier(int rank, uint32_t address) {
  for (Mbarrier& b : mbarriers.of(rank))
    if (b.address == address) return &b;
  return nullptr;
}

Mbarrier& barrier_at(uint32_t address, Site site, uint64_t pc) {
  if (Mbarrier* b = find_barrier(rank_now, address)) return *b;
  report_misuse(Misuse::no_mbarrier, pc, site, address);
  abandon_block();
}

void check_rank(uint32_t rank, Site site, uint64_t pc) {
  if (rank < static_cast<uint32_t>(cluster_size)) return;
  report_misuse(Misuse::cluster_rank, pc, site, rank, cluster_size);
  abandon_block();
}

// The barrier at that offset in a block of the cluster, whose initialisation has to come before.
Mbarrier& barrier_of(int rank, uint32_t address, Site site, uint64_t pc) {
  if (rank == rank_now) return barrier_at(address, site, pc);
  Mbarrier* b = find_barrier(rank, address);
  if constexpr (OBSERVE) {
    if (b && request.check && !observe::is_ordered(b->initialised, *current))
      belongs_to(report_misuse(Misuse::cluster_mbarrier, pc, site, address), rank);
  }
  if (b) return *b;
  belongs_to(report_misuse(Misuse::no_mbarrier, pc, site, address), rank);
  abandon_block();
}

void complete(Mbarrier& b) {
  if (b.pending != 0 || b.bytes != 0) return;
  b.phase ^= 1;
  b.pending = b.count;
  b.opened = b.gathered;
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
  as_thread(const_cast<Thread&>(*load.issuer), [&] {
    for (uint32_t row = 0; row < map.box_outer; ++row) {
      const int64_t outer = int64_t(load.outer) + row;
      const bool row_inside = outer >= 0 && static_cast<uint64_t>(outer) < map.outer;
      const char* line =
          matrix_of(map, load.batch) + outer * static_cast<int64_t>(map.pitch_bytes);
      int64_t inside = 0, first = 0;
      for (uint32_t at = 0; at < map.box_inner; at += static_cast<uint32_t>(unit)) {
        const int64_t inner = int64_t(load.inner) + at;
        const uint32_t bytes = row * ROW_BYTES + at * map.item_bytes;
        const uint32_t place = swizzled(load.shared + bytes);
        char* to = static_cast<char*>(shared_pointer(place));
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
        if constexpr (OBSERVE) {
          if (cluster_size == 1)
            observe::async_lands({to, nullptr, 16, 0, false, load.pc});
          else
            observe::cluster_write_lands(place, 16, load.issued, load.pc);
        }
      }
      if constexpr (OBSERVE) {
        if (inside && load.fetches)
          observe::bulk_global(line + first * map.item_bytes, inside * map.item_bytes, false,
                               load.pc);
      }
    }
  });
  if constexpr (OBSERVE) {
    if (cluster_size == 1)
      observe::release(*load.issuer, b.clocks, true);
    else
      observe::lands(load.issued, b.clocks);
  }
  b.gathered = std::max(b.gathered, load.there);
  b.bytes -= int64_t(map.box_inner) * map.box_outer * map.item_bytes;
}

// What lies there now is what comes: who sends it has to leave it alone until then. For all that the
// sender can know it is read by whoever waits for it.
void land(Mbarrier& b, const Transfer& transfer, Thread& waits) {
  const int source = transfer.issuer->rank;
  std::memcpy(shared_pointer(transfer.to), shared_of(source) + transfer.from, transfer.bytes);
  if constexpr (OBSERVE) {
    as_thread(waits, [&] {
      observe::cluster_transfer_lands(source, transfer.from, transfer.to,
                                      static_cast<int>(transfer.bytes), transfer.issued,
                                      transfer.pc);
      observe::touches(source, transfer.site, transfer.pc);
    });
    observe::lands(transfer.issued, b.clocks);
  }
  b.gathered = std::max(b.gathered, transfer.there);
  b.bytes -= transfer.bytes;
}

struct Wait {
  Mbarrier* barrier;
  uint32_t parity;
  Thread* thread;
};

bool phase_over(void* argument) {
  const Wait& wait = *static_cast<Wait*>(argument);
  Mbarrier& b = *wait.barrier;
  if (b.phase == wait.parity) {
    const std::vector<Load> loads = std::move(b.loads);
    const std::vector<Transfer> transfers = std::move(b.transfers);
    b.loads.clear();
    b.transfers.clear();
    for (const Load& load : loads) land(b, load);
    for (const Transfer& transfer : transfers) land(b, transfer, *wait.thread);
    if (!loads.empty() || !transfers.empty()) complete(b);
  }
  return b.phase != wait.parity;
}

}  // namespace

void hopper_start_block() {
  mbarriers.now().clear();
  stores_start_block();
  wgmma_start_block();
}

void hopper_end_thread(Thread& thread) {
  stores_end_thread(thread);
  wgmma_end_thread(thread);
}

// What others have sent to this block, or it to them, and has not landed finds no memory any more.
void hopper_end_block() {
  if (!OBSERVE || !request.check || cluster_size == 1) return;
  const auto leaves = [](const auto& copies, bool to_here) {
    for (const auto& copy : copies) {
      if (to_here == (copy.issuer->rank == rank_now)) continue;
      Finding* const f = report_misuse(Misuse::cluster_exit, copy.pc, copy.site, 0);
      belongs_to(f, rank_now);
      if (f) f->at = position_of(*copy.issuer);
    }
  };
  for (int rank = 0; rank < cluster_size; ++rank)
    for (const Mbarrier& b : mbarriers.of(rank)) {
      if (rank == rank_now) leaves(b.loads, true);
      leaves(b.transfers, rank == rank_now);
    }
}

void mbarrier_init(uint32_t barrier, uint32_t count) {
  Mbarrier* b = find_barrier(rank_now, barrier);
  if (b) {
    b->count = b->pending = count;
    b->bytes = b->phase = 0;
  } else {
    b = &mbarriers.now().emplace_back();
    *b = {barrier, count, count, 0, 0, {}, {}, 0, {}, 0, 0};
    if constexpr (OBSERVE) observe::forget(b->clocks);
  }
  if constexpr (OBSERVE) b->initialised = observe::now_of(*current);
}

static void arrive(Mbarrier& b, uint32_t transaction_bytes, bool visible) {
  if constexpr (OBSERVE) {
    observe::release(*current, b.clocks, visible);
    b.gathered = std::max(b.gathered, observe::clock_of(current->warp));
  }
  b.bytes += transaction_bytes;
  --b.pending;
  complete(b);
}

__attribute__((noinline)) void mbarrier_arrive(uint32_t barrier, uint32_t transaction_bytes,
                                               Site site) {
  arrive(barrier_at(barrier, site, CALLER), transaction_bytes, true);
}

// To another block it makes nothing visible that threads have written: see ptx/sm90.cuh.
__attribute__((noinline)) void mbarrier_arrive_cluster(uint32_t barrier, uint32_t rank,
                                                       Site site) {
  const uint64_t pc = CALLER;
  check_rank(rank, site, pc);
  const int there = static_cast<int>(rank);
  Mbarrier& b = barrier_of(there, barrier, site, pc);
  if constexpr (OBSERVE) observe::touches(there, site, pc);
  arrive(b, 0, there == rank_now);
}

__attribute__((noinline)) void mbarrier_wait(uint32_t barrier, uint32_t parity, Site site) {
  Wait wait{&barrier_at(barrier, site, CALLER), parity, current};
  wait_until(phase_over, &wait, "mbarrier", site);
  if constexpr (OBSERVE) {
    observe::acquire(*current, wait.barrier->clocks);
    observe::waits(current->warp, observe::Phase::wait_mbarrier, wait.barrier->opened, site.line);
  }
}

// Blocks of the cluster by bit.
static void load(uint32_t shared, const CUtensorMap* map, uint32_t barrier, int inner, int outer,
                 int batch, uint32_t ranks, Site site, uint64_t pc) {
  uint64_t there = 0;
  Epoch issued = 0;
  if constexpr (OBSERVE) {
    if (request.check && shared % 128) report_misuse(Misuse::box_address, pc, site, shared);
    if (cluster_size > 1) issued = observe::issues(*current);
    there = observe::asks_for_copy(current->warp, observe::Phase::bulk_load, site.line);
  }
  bool fetches = true;
  for (int rank = 0; rank < cluster_size; ++rank) {
    if (!(ranks >> rank & 1)) continue;
    Mbarrier& b = barrier_of(rank, barrier, site, pc);
    if constexpr (OBSERVE) {
      if (!blocks[rank].alive) observe::touches(rank, site, pc);
      each_unit(*map, [&](uint32_t at) {
        const uint32_t to = swizzled(shared + at);
        if (rank == rank_now)
          observe::async_write_begins(static_cast<char*>(shared_pointer(to)), 16, pc);
        else
          observe::cluster_write_begins(rank, to, 16, pc);
      });
    }
    b.loads.push_back({shared, *map, inner, outer, batch, current, issued, fetches, site, pc, there});
    fetches = false;
  }
}

__attribute__((noinline)) void bulk_load(uint32_t shared, const CUtensorMap* map, uint32_t barrier,
                                         int inner, int outer, int batch, Site site) {
  load(shared, map, barrier, inner, outer, batch, 1u << rank_now, site, CALLER);
}

__attribute__((noinline)) void bulk_load_multicast(uint32_t shared, const CUtensorMap* map,
                                                   uint32_t barrier, int inner, int outer,
                                                   int batch, uint32_t ranks, Site site) {
  const uint64_t pc = CALLER;
  check_rank(ranks ? 31u - static_cast<uint32_t>(__builtin_clz(ranks)) : 32, site, pc);
  load(shared, map, barrier, inner, outer, batch, ranks, site, pc);
}

__attribute__((noinline)) void bulk_transfer(uint32_t to, uint32_t from, uint32_t bytes,
                                             uint32_t barrier, uint32_t rank, Site site) {
  const uint64_t pc = CALLER;
  check_rank(rank, site, pc);
  const int block = static_cast<int>(rank);
  Mbarrier& b = barrier_of(block, barrier, site, pc);
  uint64_t there = 0;
  Epoch issued = 0;
  if constexpr (OBSERVE) {
    if (request.check && (to | from | bytes) % 16)
      report_misuse(Misuse::bulk_copy, pc, site, to % 16 ? to : from, static_cast<int32_t>(bytes));
    if (!blocks[block].alive) observe::touches(block, site, pc);
    issued = observe::issues(*current);
    there = observe::asks_for_copy(current->warp, observe::Phase::bulk_load, site.line);
    observe::cluster_read_begins(from, static_cast<int>(bytes), site, pc);
    observe::cluster_write_begins(block, to, static_cast<int>(bytes), pc);
  }
  b.transfers.push_back({to, from, bytes, current, issued, site, pc, there});
}

__attribute__((noinline)) float load_cluster(uint32_t at, uint32_t rank, Site site) {
  const uint64_t pc = CALLER;
  check_rank(rank, site, pc);
  const int block = static_cast<int>(rank);
  if constexpr (OBSERVE) {
    observe::cluster_read(block, at, 4, pc);
    observe::touches(block, site, pc);
  }
  float x;
  std::memcpy(&x, shared_of(block) + at, 4);
  return x;
}

}  // namespace tcgemm::simulator
