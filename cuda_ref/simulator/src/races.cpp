// What orders accesses to shared memory, and which are not ordered: races, copies in flight, bytes
// that nobody wrote.
#include <sys/mman.h>

#include <cstdlib>

#include "clocks.hpp"

extern "C" __attribute__((visibility("hidden"))) thread_local unsigned char
    tcgemm_dynamic_shared[];

namespace tcgemm::simulator {
namespace observe {

namespace {

void* pages(size_t bytes) {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) std::abort();
  return at;
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
Cell* cells;  // of the running block
PerBlock<Cell*> cells_of;
int granule_shift = 1;

// Asynchronous copies that read a granule, as they are kept until a thread overwrites it.
struct Sent {
  uint32_t unfinished;  // of these, those that nobody has waited for: no clock orders a write after them
  Epoch issuer;         // of the last one
  uint32_t pc;
};
Sent* sent;  // of the running block
PerBlock<Sent*> sent_of;
// The same of a granule by the block that a copy went to: who waited for it there, 0 nobody. Apart,
// because most granules are sent to no block of the cluster.
using Received = std::array<Epoch, MAX_CLUSTER>;
Received* received;  // of the running block
PerBlock<Received*> received_of;
PerBlock<bool> sends;  // whether copies to blocks of the cluster have left marks there
// Where it is 0 no granule is marked: what a write costs where nothing is sent. Bulk stores that have
// not ended, and all copies to blocks of the cluster.
uint32_t marked;

// Writes of threads to shared memory in the running cluster, and after how many of them each thread,
// and any of each warp, has last called fence_proxy_async.
uint32_t writes;
PerBlock<std::array<uint32_t, MAX_THREADS>> fenced;
uint32_t fenced_by_warp[MAX_CLUSTER_WARPS];

void split_granules() {
  for (int rank = 0; rank < cluster_size; ++rank) {
    Cell* const all = cells_of.of(rank);
    Sent* const marks = sent_of.of(rank);
    Received* const waited = received_of.of(rank);
    for (size_t i = static_cast<size_t>(shared_high - shared_low); i-- > 0;) {
      if (all[i >> 1].writer || all[i].writer || all[i >> 1].reader.epoch || all[i].reader.epoch)
        all[i] = all[i >> 1];
      if (!marked || !(marks[i >> 1].issuer || marks[i].issuer)) continue;
      marks[i] = marks[i >> 1];
      waited[i] = waited[i >> 1];
    }
  }
  granule_shift = 0;
}

// The cells of another block of the cluster are `cells`, and what is found is in that one's memory.
int owner = -1;
class InBlock {
 public:
  explicit InBlock(int rank) {
    cells = cells_of.of(rank);
    sent = sent_of.of(rank);
    received = received_of.of(rank);
    if (rank != rank_now) owner = rank;
  }
  ~InBlock() {
    enter_block_races();
    owner = -1;
  }
};

__attribute__((noinline, cold)) Finding* found(Kind kind, uint64_t pc, const char* address,
                                               int bytes, bool write) {
  Finding* f = shared_finding(kind, pc, address, bytes, write);
  if (owner >= 0) belongs_to(f, owner);
  return f;
}

void add_other(Finding* f, Epoch other, uint32_t pc, bool write) {
  f->has_other = 1;
  f->other = position_of(thread_of(other));
  f->other_pc = pc;
  f->other_write = write;
}

constexpr uint32_t PC_MASK = (1u << 27) - 1;
constexpr uint32_t BY_ATOMIC_PC = 1u << 31;  // in a writer's place: its access was atomic

// A thread writes where copies read: each has to have ended, and its end to be ordered before.
template <typename Clock>
__attribute__((noinline, cold)) void overwrites(size_t i, const Thread& t, uint64_t pc,
                                                const char* address, int bytes) {
  Sent& by = sent[i];
  if (by.unfinished) {
    if (Finding* f = found(Kind::race, pc, address, bytes, true)) {
      add_other(f, by.issuer, by.pc, false);
      f->other_sends = 1;
    }
    return;
  }
  for (int rank = 0; rank < cluster_size; ++rank) {
    const Epoch end = received[i][static_cast<size_t>(rank)];
    if (end && !Clock::ordered(end, t))
      if (Finding* f = found(Kind::race, pc, address, bytes, true)) add_other(f, end, by.pc, false);
  }
  by = {};
  received[i] = {};
}

void sends_granule(size_t i, Epoch me, uint64_t pc) {
  ++sent[i].unfinished;
  sent[i].issuer = me;
  sent[i].pc = static_cast<uint32_t>(pc);
}

// The epoch of a reader's neighbour: the same warp and interval, another lane.
Epoch neighbour_of(const Reader& reader) {
  return (reader.epoch & ~31u & ~MANY) | reader.neighbour >> 27;
}

template <typename Clock>
void note_read(Cell& cell, const Thread& t, Epoch me, uint32_t pc) {
  Reader& last = cell.reader;
  if (last.epoch && Clock::warp_of(last.epoch) == t.cluster_warp) {
    const bool same_interval = Clock::clock_of(last.epoch) >= Clock::interval_of(t.cluster_warp);
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
  const size_t granules = static_cast<size_t>(shared_high - shared_low) + 16;
  for (int rank = 0; rank < cluster_size; ++rank) {
    if (cells_of.of(rank)) continue;
    cells_of.of(rank) = static_cast<Cell*>(pages(granules * sizeof(Cell)));
    sent_of.of(rank) = static_cast<Sent*>(pages(granules * sizeof(Sent)));
    received_of.of(rank) = static_cast<Received*>(pages(granules * sizeof(Received)));
  }
  enter_block_races();
}

void enter_block_races() {
  cells = cells_of.now();
  sent = sent_of.now();
  received = received_of.now();
}

void start_block_races() {
  writes = 0;
  std::fill(fenced.now().begin(), fenced.now().begin() + thread_count, 0);
  std::fill_n(fenced_by_warp + rank_now * warp_count, warp_count, 0);
  const size_t dynamic = static_cast<size_t>(
      reinterpret_cast<char*>(tcgemm_dynamic_shared) - shared_low);
  auto clear = [&](auto* all) {
    const auto part = [all](size_t low, size_t high) {
      std::memset(static_cast<void*>(&all[low >> granule_shift]), 0,
                  ((high - low) >> granule_shift) * sizeof(*all));
    };
    part(0, dynamic + dynamic_shared_bytes);
    part(dynamic + MAX_SHARED, static_cast<size_t>(shared_high - shared_low));
  };
  clear(cells);
  if (sends.now()) clear(sent), clear(received);
  sends.now() = false;
  marked = 0;
}

template <typename Clock>
__attribute__((always_inline)) static inline void check_cells(Thread& t, char* address, int bytes,
                                                              bool write, uint64_t pc,
                                                              bool atomic) {
  if (bytes == 1 && granule_shift) split_granules();
  const size_t first = static_cast<size_t>(address - shared_low) >> granule_shift;
  const size_t last = static_cast<size_t>(address + bytes - 1 - shared_low) >> granule_shift;
  const Epoch me = Clock::epoch_of(t);
  const uint32_t now = write ? ++writes : 0;
  Sent* const marks = marked ? sent : nullptr;
  for (size_t i = first; i <= last; ++i) {
    Cell& cell = cells[i];
    if (cell.in_flight) {
      if (Finding* f = found(Kind::async_in_flight, pc, address, bytes, write))
        add_other(f, cell.in_flight, cell.in_flight_pc, true);
    } else if ((!write || atomic) && cell.writer == 0) {
      found(Kind::uninitialised, pc, address, bytes, false);
    } else if (cell.writer &&
               (!Clock::ordered(cell.writer, t) ||
                (!write && cell.written && Clock::hidden(cell.writer, t))) &&
               !(atomic && cell.writer_pc & BY_ATOMIC_PC)) {
      if (Finding* f = found(Kind::race, pc, address, bytes, write)) {
        const bool mine = &thread_of(cell.writer) == &t;
        add_other(f, mine ? cell.with_writer : cell.writer, cell.writer_pc & PC_MASK, true);
      }
    }
    if (write) {
      if (__builtin_expect(marks && marks[i].issuer, false))
        overwrites<Clock>(i, t, pc, address, bytes);
      for (const Reader& reader : {cell.reader, cell.other_reader}) {
        if (!reader.epoch || Clock::ordered(reader.epoch, t)) continue;
        if (Finding* f = found(Kind::race, pc, address, bytes, write)) {
          if (&thread_of(reader.epoch) == &t && reader.neighbour)
            add_other(f, neighbour_of(reader), reader.neighbour & PC_MASK, false);
          else
            add_other(f, reader.epoch, reader.pc, false);
        }
      }
      const bool with_others = atomic && cell.writer_pc & BY_ATOMIC_PC && cell.writer &&
                               !Clock::ordered(cell.writer, t) &&
                               Clock::warp_of(cell.writer) == t.cluster_warp;
      if (with_others && &thread_of(cell.writer) != &t) cell.with_writer = cell.writer & ~MANY;
      cell.writer = me | (with_others ? MANY : 0);
      cell.written = now;
      cell.writer_pc = static_cast<uint32_t>(pc) | (atomic ? BY_ATOMIC_PC : 0);
      cell.reader = cell.other_reader = {};
    } else {
      note_read<Clock>(cell, t, me, static_cast<uint32_t>(pc));
    }
  }
}

__attribute__((noinline)) static void check_in_cluster(Thread& t, char* address, int bytes,
                                                       bool write, uint64_t pc, bool atomic) {
  check_cells<Cluster>(t, address, bytes, write, pc, atomic);
}

// A block alone is the usual case, and most of a checked run's time.
void check_shared(Thread& t, char* address, int bytes, bool write, uint64_t pc, bool atomic) {
  if (__builtin_expect(cluster_size > 1, false))
    check_in_cluster(t, address, bytes, write, pc, atomic);
  else
    check_cells<OneBlock>(t, address, bytes, write, pc, atomic);
}

void check_proxy(const Thread& reader, const char* address, Misuse what, Site site, uint64_t pc) {
  const Cell& cell = cells[static_cast<size_t>(address - shared_low) >> granule_shift];
  if (cell.written <= fenced_by_warp[reader.cluster_warp]) return;
  const Thread& writer = thread_of(cell.writer);
  if (cell.written <= fenced.of(writer.rank)[static_cast<size_t>(writer.linear)]) return;
  Finding* f = report_misuse(what, pc, site, address - shared_low);
  if (!f) return;
  f->has_other = 1;
  f->other = position_of(writer);
}

void fence_proxy() {
  fenced.now()[static_cast<size_t>(current->linear)] = writes;
  fenced_by_warp[current->cluster_warp] = writes;
}

void mark_in_flight(const char* to, int bytes, uint64_t pc) {
  const Epoch me = epoch_of(*current);
  const size_t first = static_cast<size_t>(to - shared_low) >> granule_shift;
  for (size_t i = first; i < first + (static_cast<size_t>(bytes) >> granule_shift); ++i) {
    cells[i].in_flight = me;
    cells[i].in_flight_pc = static_cast<uint32_t>(pc);
    cells[i].written = 0;  // by no thread itself
  }
}

void async_write_begins(char* to, int bytes, uint64_t pc) {
  if (!shared_exists(to, bytes, true, pc) || !request.check) return;
  check_shared(*current, to, bytes, true, pc);
  mark_in_flight(to, bytes, pc);
}

// Until the copy has ended, no clock orders a write after it.
void async_read_begins(char* from, int bytes, Site site, uint64_t pc) {
  if (!shared_exists(from, bytes, false, pc) || !request.check) return;
  check_shared(*current, from, bytes, false, pc);
  check_proxy(*current, from, Misuse::store_proxy, site, pc);
  ++marked;
  const Epoch me = epoch_of(*current);
  const size_t first = static_cast<size_t>(from - shared_low) >> granule_shift;
  for (size_t i = first; i < first + (static_cast<size_t>(bytes) >> granule_shift); ++i)
    sends_granule(i, me, pc);
}

void async_read_ends(char* from, int bytes, uint64_t pc) {
  if (!shared_exists(from, bytes, false, pc) || !request.check) return;
  --marked;
  const Epoch me = epoch_of(*current);
  const size_t first = static_cast<size_t>(from - shared_low) >> granule_shift;
  for (size_t i = first; i < first + (static_cast<size_t>(bytes) >> granule_shift); ++i) {
    if (--sent[i].unfinished == 0 && !sends.now()) sent[i].issuer = 0;
    if (cluster_size == 1)
      note_read<OneBlock>(cells[i], *current, me, static_cast<uint32_t>(pc));
    else
      note_read<Cluster>(cells[i], *current, me, static_cast<uint32_t>(pc));
  }
}

static void land(const char* to, int bytes, Epoch by, uint64_t pc) {
  if (!request.check) return;
  const size_t first = static_cast<size_t>(to - shared_low) >> granule_shift;
  for (size_t i = first; i < first + (static_cast<size_t>(bytes) >> granule_shift); ++i) {
    cells[i].in_flight = 0;
    cells[i].written = 0;
    cells[i].writer = by;
    cells[i].writer_pc = static_cast<uint32_t>(pc);
  }
}

void async_lands(const Copy& copy) { land(copy.to, copy.bytes, epoch_of(*current), copy.pc); }

void cluster_read(int rank, uint32_t at, int bytes, uint64_t pc) {
  char* const place = shared_low + at;
  if (!shared_exists(place, bytes, false, pc) || !request.check) return;
  if (at % static_cast<uint32_t>(bytes)) misaligned(pc, -1, place, bytes, false);
  InBlock there(rank);
  check_shared(*current, place, bytes, false, pc);
}

void cluster_write_begins(int rank, uint32_t at, int bytes, uint64_t pc) {
  InBlock there(rank);
  async_write_begins(shared_low + at, bytes, pc);
}

void cluster_write_lands(uint32_t to, int bytes, Epoch issued, uint64_t pc) {
  land(shared_low + to, bytes, issued, pc);
}

// Bytes that nobody wrote may be copied: they are nobody's there, too.
void cluster_read_begins(uint32_t from, int bytes, Site site, uint64_t pc) {
  if (!shared_exists(shared_low + from, bytes, false, pc) || !request.check) return;
  const Epoch me = epoch_of(*current);
  const int granule = 1 << granule_shift;
  ++marked;
  sends.now() = true;
  for (int at = 0; at < bytes; at += granule) {
    char* const place = shared_low + from + at;
    const size_t i = (from + static_cast<uint32_t>(at)) >> granule_shift;
    sends_granule(i, me, pc);
    if (!cells[i].writer && !cells[i].in_flight) continue;
    check_shared(*current, place, granule, false, pc);
    check_proxy(*current, place, Misuse::copy_proxy, site, pc);
  }
}

// `marked` stays: who received it is looked at where the source is overwritten.
void cluster_transfer_lands(int rank, uint32_t from, uint32_t to, int bytes, Epoch issued,
                            uint64_t pc) {
  if (!request.check) return;
  cluster_write_lands(to, bytes, issued, pc);
  const Epoch me = epoch_of(*current);
  for (int at = 0; at < bytes; at += 1 << granule_shift) {
    const size_t i = (from + static_cast<uint32_t>(at)) >> granule_shift;
    Sent& source = sent_of.of(rank)[i];
    if (source.unfinished) --source.unfinished;  // 0: it began beyond the block's memory
    received_of.of(rank)[i][static_cast<size_t>(rank_now)] = me;
    if (!cells_of.of(rank)[i].writer)
      cells[(to + static_cast<uint32_t>(at)) >> granule_shift].writer = 0;
  }
}

}  // namespace observe
}  // namespace tcgemm::simulator
