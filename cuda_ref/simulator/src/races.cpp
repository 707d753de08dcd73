// What orders accesses to shared memory, and which are not ordered: races, copies in flight, bytes
// that nobody wrote.
#include <sys/mman.h>

#include "observe.hpp"

extern "C" __attribute__((visibility("hidden"))) thread_local unsigned char
    tcgemm_dynamic_shared[];

namespace tcgemm::simulator {
namespace observe {

namespace {

// Vector clocks. A warp's clock counts its synchronisations; seen[w][u] is the last clock of warp
// u whose accesses are ordered before what warp w does now.
int64_t warp_clock[MAX_WARPS];
int64_t seen[MAX_WARPS][MAX_WARPS];

// One access packed: clock + 1, warp, lane; 0 is none. MANY: other lanes of the warp did the same.
using Epoch = uint32_t;
constexpr Epoch MANY = 1u << 31;

Epoch epoch_of(const Thread& t) {
  return static_cast<Epoch>((warp_clock[t.warp] + 1) << 10 | t.warp << 5 | t.lane);
}
int warp_of(Epoch e) { return e >> 5 & 31; }
int lane_of(Epoch e) { return e & 31; }
int64_t clock_of(Epoch e) { return static_cast<int64_t>((e & ~MANY) >> 10) - 1; }

bool ordered(Epoch e, const Thread& t) {
  if (warp_of(e) == t.warp)
    return clock_of(e) < warp_clock[t.warp] || (lane_of(e) == t.lane && !(e & MANY));
  return clock_of(e) <= seen[t.warp][warp_of(e)];
}

// The last read of a granule by one warp.
struct Reader {
  Epoch epoch;
  uint32_t pc;
  // Of MANY, a lane other than the epoch's that read in the same interval, with its place in the
  // code: lane << 27 | pc. A race of the epoch's own thread is with that one.
  uint32_t neighbour;
};

// What is known of one granule of shared memory in the running block.
struct Cell {
  Epoch writer;
  uint32_t writer_pc;
  Epoch with_writer;  // where writer is MANY, all by atomic operations: another of them
  Reader reader, other_reader;  // other_reader: of another warp than reader
  uint32_t written;  // when, of a thread's own write by the count of `writes`; 0: an asynchronous copy's
  Epoch in_flight;  // who issued an asynchronous copy to it that has not landed
  uint32_t in_flight_pc;
};
// A cell per granule of two bytes; of one byte from the first access of a single byte on. Pages are
// taken as they are touched.
Cell* cells;
int granule_shift = 1;

// Writes of threads to shared memory in the running block, and after how many of them each thread,
// and any of each warp, has last called fence_proxy_async.
uint32_t writes;
uint32_t fenced[MAX_THREADS], fenced_by_warp[MAX_WARPS];

void split_granules() {
  for (size_t i = static_cast<size_t>(shared_high - shared_low); i-- > 0;) {
    if (cells[i >> 1].writer || cells[i].writer || cells[i >> 1].reader.epoch ||
        cells[i].reader.epoch)
      cells[i] = cells[i >> 1];
  }
  granule_shift = 0;
}

Thread& thread_of(Epoch e) { return threads[warp_of(e) * 32 + lane_of(e)]; }

void add_other(Finding* f, Epoch other, uint32_t pc, bool write) {
  f->has_other = 1;
  f->other = position_of(thread_of(other));
  f->other_pc = pc;
  f->other_write = write;
}

constexpr uint32_t PC_MASK = (1u << 27) - 1;
constexpr uint32_t BY_ATOMIC_PC = 1u << 31;  // in a writer's place: its access was atomic

// The epoch of a reader's neighbour: the same warp and interval, another lane.
Epoch neighbour_of(const Reader& reader) {
  return (reader.epoch & ~31u & ~MANY) | reader.neighbour >> 27;
}

void note_read(Cell& cell, const Thread& t, Epoch me, uint32_t pc) {
  Reader& last = cell.reader;
  if (last.epoch && warp_of(last.epoch) == t.warp) {
    const bool same_interval = clock_of(last.epoch) == warp_clock[t.warp];
    const bool another_lane = lane_of(last.epoch) != t.lane;
    const bool many = same_interval && (last.epoch & MANY || another_lane);
    if (many && another_lane)
      last.neighbour = static_cast<uint32_t>(lane_of(last.epoch)) << 27 | (last.pc & PC_MASK);
    else if (!many)
      last.neighbour = 0;
    last.epoch = me | (many ? MANY : 0);
    last.pc = pc;
    return;
  }
  if (last.epoch) cell.other_reader = last;
  last = {me, pc, 0};
}

}  // namespace

void start_races() {
  if (cells) return;
  const size_t bytes = (static_cast<size_t>(shared_high - shared_low) + 16) * sizeof(Cell);
  cells = static_cast<Cell*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
}

void start_block_races() {
  for (int w = 0; w < warp_count; ++w) {
    warp_clock[w] = 0;
    for (int u = 0; u < warp_count; ++u) seen[w][u] = -1;
  }
  writes = 0;
  std::fill(fenced, fenced + thread_count, 0);
  std::fill(fenced_by_warp, fenced_by_warp + warp_count, 0);
  const size_t dynamic = static_cast<size_t>(
      reinterpret_cast<char*>(tcgemm_dynamic_shared) - shared_low);
  auto clear = [](size_t low, size_t high) {
    std::memset(static_cast<void*>(&cells[low >> granule_shift]), 0,
                ((high - low) >> granule_shift) * sizeof(Cell));
  };
  clear(0, dynamic + dynamic_shared_bytes);
  clear(dynamic + MAX_SHARED, static_cast<size_t>(shared_high - shared_low));
}

void check_shared(Thread& t, char* address, int bytes, bool write, uint64_t pc, bool atomic) {
  if (bytes == 1 && granule_shift) split_granules();
  const size_t first = static_cast<size_t>(address - shared_low) >> granule_shift;
  const size_t last = static_cast<size_t>(address + bytes - 1 - shared_low) >> granule_shift;
  const Epoch me = epoch_of(t);
  const uint32_t now = write ? ++writes : 0;
  for (size_t i = first; i <= last; ++i) {
    Cell& cell = cells[i];
    if (cell.in_flight) {
      if (Finding* f = shared_finding(Kind::async_in_flight, pc, address, bytes, write))
        add_other(f, cell.in_flight, cell.in_flight_pc, true);
    } else if ((!write || atomic) && cell.writer == 0) {
      shared_finding(Kind::uninitialised, pc, address, bytes, false);
    } else if (cell.writer && !ordered(cell.writer, t) &&
               !(atomic && cell.writer_pc & BY_ATOMIC_PC)) {
      if (Finding* f = shared_finding(Kind::race, pc, address, bytes, write)) {
        const bool mine = &thread_of(cell.writer) == &t;
        add_other(f, mine ? cell.with_writer : cell.writer, cell.writer_pc & PC_MASK, true);
      }
    }
    if (write) {
      for (const Reader& reader : {cell.reader, cell.other_reader}) {
        if (!reader.epoch || ordered(reader.epoch, t)) continue;
        if (Finding* f = shared_finding(Kind::race, pc, address, bytes, write)) {
          if (&thread_of(reader.epoch) == &t && reader.neighbour)
            add_other(f, neighbour_of(reader), reader.neighbour & PC_MASK, false);
          else
            add_other(f, reader.epoch, reader.pc, false);
        }
      }
      const bool with_others = atomic && cell.writer_pc & BY_ATOMIC_PC && cell.writer &&
                               !ordered(cell.writer, t) && warp_of(cell.writer) == t.warp;
      if (with_others && &thread_of(cell.writer) != &t) cell.with_writer = cell.writer & ~MANY;
      cell.writer = me | (with_others ? MANY : 0);
      cell.written = now;
      cell.writer_pc = static_cast<uint32_t>(pc) | (atomic ? BY_ATOMIC_PC : 0);
      cell.reader = cell.other_reader = {};
    } else {
      note_read(cell, t, me, static_cast<uint32_t>(pc));
    }
  }
}

void check_proxy(const Thread& reader, const char* address, Misuse what, Site site, uint64_t pc) {
  const Cell& cell = cells[static_cast<size_t>(address - shared_low) >> granule_shift];
  if (cell.written <= fenced_by_warp[reader.warp]) return;
  const Thread& writer = thread_of(cell.writer);
  if (cell.written <= fenced[writer.linear]) return;
  Finding* f = report_misuse(what, pc, site, address - shared_low);
  if (!f) return;
  f->has_other = 1;
  f->other = position_of(writer);
}

void fence_proxy() { fenced[current->linear] = fenced_by_warp[current->warp] = writes; }

void mark_in_flight(const char* to, int bytes, uint64_t pc) {
  const size_t first = static_cast<size_t>(to - shared_low) >> granule_shift;
  for (size_t i = first; i < first + (static_cast<size_t>(bytes) >> granule_shift); ++i) {
    cells[i].in_flight = epoch_of(*current);
    cells[i].in_flight_pc = static_cast<uint32_t>(pc);
  }
}

void order_warp(int warp) { ++warp_clock[warp]; }

void order_block(uint64_t warp_mask) {
  int64_t joined[MAX_WARPS];
  std::fill(joined, joined + warp_count, -1);
  for (int w = 0; w < warp_count; ++w) {
    if (!(warp_mask >> w & 1)) continue;
    for (int u = 0; u < warp_count; ++u) joined[u] = std::max(joined[u], seen[w][u]);
    joined[w] = std::max(joined[w], warp_clock[w]);
  }
  for (int w = 0; w < warp_count; ++w) {
    if (!(warp_mask >> w & 1)) continue;
    std::copy(joined, joined + warp_count, seen[w]);
    ++warp_clock[w];
  }
}

void async_write_begins(char* to, int bytes, uint64_t pc) {
  if (!shared_exists(to, bytes, true, pc) || !request.check) return;
  check_shared(*current, to, bytes, true, pc);
  mark_in_flight(to, bytes, pc);
}

// Until the read has ended, no clock orders a write after it.
void async_read_begins(char* from, int bytes, Site site, uint64_t pc) {
  if (!shared_exists(from, bytes, false, pc) || !request.check) return;
  check_shared(*current, from, bytes, false, pc);
  check_proxy(*current, from, Misuse::store_proxy, site, pc);
  const size_t first = static_cast<size_t>(from - shared_low) >> granule_shift;
  for (size_t i = first; i < first + (static_cast<size_t>(bytes) >> granule_shift); ++i)
    cells[i].reader.epoch |= 0x7ffffc00u;
}

void async_read_ends(char* from, int bytes, uint64_t pc) {
  if (!shared_exists(from, bytes, false, pc) || !request.check) return;
  const size_t first = static_cast<size_t>(from - shared_low) >> granule_shift;
  for (size_t i = first; i < first + (static_cast<size_t>(bytes) >> granule_shift); ++i)
    cells[i].reader.epoch = epoch_of(*current);
}

void release(int warp, int64_t* clocks) {
  for (int u = 0; u < warp_count; ++u) clocks[u] = std::max(clocks[u], seen[warp][u]);
  clocks[warp] = std::max(clocks[warp], warp_clock[warp]);
  ++warp_clock[warp];
}

void acquire(int warp, const int64_t* clocks) {
  for (int u = 0; u < warp_count; ++u)
    if (u != warp) seen[warp][u] = std::max(seen[warp][u], clocks[u]);
}

void async_lands(const Copy& copy) {
  if (!request.check) return;
  const size_t first = static_cast<size_t>(copy.to - shared_low) >> granule_shift;
  for (size_t i = first; i < first + (static_cast<size_t>(copy.bytes) >> granule_shift); ++i) {
    cells[i].in_flight = 0;
    cells[i].written = 0;
    cells[i].writer = epoch_of(*current);
    cells[i].writer_pc = static_cast<uint32_t>(copy.pc);
  }
}

}  // namespace observe
}  // namespace tcgemm::simulator
