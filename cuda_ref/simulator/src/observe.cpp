// What the observed build sees: g++ calls a hook with the address of every load and store of the
// kernel. Each is checked against what may be touched and what orders it, and counted as the
// hardware would serve it: in requests of one warp, 32-byte sectors and shared-memory wavefronts.
#include <sys/mman.h>

#include <algorithm>
#include <memory>

#include "internal.hpp"

extern "C" __attribute__((visibility("hidden"))) thread_local unsigned char
    tcgemm_dynamic_shared[];

namespace tcgemm::simulator {

namespace observe {

namespace {

constexpr int WGMMA = 2;  // the number of its instruction in MmaCount

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
  Reader reader, other_reader;  // other_reader: of another warp than reader
  Epoch in_flight;  // who issued an asynchronous copy to it that has not landed
  uint32_t in_flight_pc;
};
// A cell per granule of two bytes; of one byte from the first access of a single byte on. Pages are
// taken as they are touched.
Cell* cells;
int granule_shift = 1;

void split_granules() {
  for (size_t i = static_cast<size_t>(shared_high - shared_low); i-- > 0;) {
    if (cells[i >> 1].writer || cells[i].writer || cells[i >> 1].reader.epoch ||
        cells[i].reader.epoch)
      cells[i] = cells[i >> 1];
  }
  granule_shift = 0;
}

struct Entry {
  uint64_t address;
  uint64_t from;  // what an asynchronous copy to `address` reads, 0 where it reads nothing
  uint32_t pc;
  uint8_t bytes, space, lane;  // space: the operand, or SHARED
  bool write;
  enum : uint8_t { access, copy, copy_through_l1 } kind;
  uint8_t read;  // bytes that a copy reads; it fills up with zeros
};
constexpr uint8_t SHARED = NUM_OPERANDS;
std::vector<Entry> logs[MAX_WARPS][32];

// Sectors in the order of access, for the L2 model: number << 1 | write.
constexpr uint64_t TRACE_ENTRIES = 1ull << 28;
uint32_t* traces;
BlockTrace* block_traces;
uint64_t block_total;
uint64_t trace_bytes;
bool trace_full;

int worker_index() { return static_cast<int>(worker - control->workers); }

Thread& thread_of(Epoch e) { return threads[warp_of(e) * 32 + lane_of(e)]; }

void add_other(Finding* f, Epoch other, uint32_t pc, bool write) {
  f->has_other = 1;
  f->other = position_of(thread_of(other));
  f->other_pc = pc;
  f->other_write = write;
}

Finding* shared_finding(Kind kind, uint64_t pc, const char* address, int bytes, bool write) {
  Finding* f = report(kind, pc);
  if (!f) return nullptr;
  f->offset = address - shared_low;
  f->bytes = bytes;
  f->write = write;
  return f;
}

constexpr uint32_t PC_MASK = (1u << 27) - 1;

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

void check_shared(Thread& t, char* address, int bytes, bool write, uint64_t pc) {
  if (bytes == 1 && granule_shift) split_granules();
  const size_t first = static_cast<size_t>(address - shared_low) >> granule_shift;
  const size_t last = static_cast<size_t>(address + bytes - 1 - shared_low) >> granule_shift;
  const Epoch me = epoch_of(t);
  for (size_t i = first; i <= last; ++i) {
    Cell& cell = cells[i];
    if (cell.in_flight) {
      if (Finding* f = shared_finding(Kind::async_in_flight, pc, address, bytes, write))
        add_other(f, cell.in_flight, cell.in_flight_pc, true);
    } else if (!write && cell.writer == 0) {
      shared_finding(Kind::uninitialised, pc, address, bytes, write);
    } else if (cell.writer && !ordered(cell.writer, t)) {
      if (Finding* f = shared_finding(Kind::race, pc, address, bytes, write))
        add_other(f, cell.writer, cell.writer_pc, true);
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
      cell.writer = me;
      cell.writer_pc = static_cast<uint32_t>(pc);
      cell.reader = cell.other_reader = {};
    } else {
      note_read(cell, t, me, static_cast<uint32_t>(pc));
    }
  }
}

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

// The element at `offset` elements from the operand's first, and whether the view holds it. Rows
// count on from matrix to matrix of a batch.
bool locate(const Operand& o, int64_t offset, int64_t* row, int64_t* col) {
  const int64_t whole = offset;
  const int64_t z = o.batches == 1 || offset < 0
                        ? 0
                        : std::min(offset / o.batch_stride, o.batches - 1);
  offset -= z * o.batch_stride;
  const int64_t i = o.big_stride == 0 ? 0 : floor_div(offset, o.big_stride);
  const int64_t rest = offset - i * o.big_stride;
  const int64_t j = o.small_stride <= 1 ? rest : rest / o.small_stride;
  *row = z * o.rows + (o.big_is_row ? i : j);
  *col = o.big_is_row ? j : i;
  if (!o.decodable) {
    const int64_t last = (o.batches - 1) * o.batch_stride + (o.big_count - 1) * o.big_stride +
                         (o.small_count - 1) * o.small_stride;
    return whole >= 0 && whole <= last;
  }
  return offset >= 0 && i < o.big_count && j < o.small_count &&
         (o.small_stride <= 1 || rest % o.small_stride == 0);
}

void check_global(int operand, char* address, int bytes, bool write, uint64_t pc) {
  const Operand& o = operands[operand];
  const int64_t distance = address - o.data;
  const int64_t first = floor_div(distance, o.item);
  const int64_t last = floor_div(distance + bytes - 1, o.item);
  for (int64_t e = first; e <= last; ++e) {
    int64_t row, col;
    if (!locate(o, e, &row, &col)) {
      if (Finding* f = report(Kind::out_of_bounds, pc, operand)) {
        f->write = write;
        f->bytes = bytes;
        f->row = row;
        f->col = col;
        f->offset = distance;
      }
      continue;
    }
    if (!write) continue;
    if (operand != C_OPERAND) {
      if (Finding* f = report(Kind::writes_input, pc, operand)) {
        f->row = row;
        f->col = col;
        f->bytes = bytes;
      }
      continue;
    }
    if (!o.decodable) continue;
    int32_t& writer = c_writers[row * o.cols + col];
    const int32_t me = static_cast<int32_t>(block_number) + 1;
    const int32_t before = __atomic_exchange_n(&writer, me, __ATOMIC_RELAXED);
    if (before == 0 || before == me) continue;
    if (Finding* f = report(Kind::written_twice, pc, operand)) {
      const uint64_t block = static_cast<uint64_t>(before) - 1;
      f->row = row;
      f->col = col;
      f->bytes = bytes;
      f->has_other = 1;
      f->other = {{static_cast<uint32_t>(block % grid_dim.x),
                   static_cast<uint32_t>(block / grid_dim.x % grid_dim.y),
                   static_cast<uint32_t>(block / grid_dim.x / grid_dim.y)},
                  {0, 0, 0}};
    }
  }
}

void misaligned(uint64_t pc, int operand, const char* address, int bytes, bool write) {
  Finding* f = report(Kind::misaligned, pc, operand);
  if (!f) return;
  f->bytes = bytes;
  f->write = write;
  f->signal = static_cast<int32_t>(reinterpret_cast<uintptr_t>(address) % bytes);
  if (operand < 0) {
    f->offset = address - shared_low;
  } else {
    const Operand& o = operands[operand];
    f->offset = address - o.data;
    locate(o, floor_div(f->offset, o.item), &f->row, &f->col);
  }
}

int operand_at(const char* address) {
  for (int i = 0; i < NUM_OPERANDS; ++i)
    if (static_cast<size_t>(address - operands[i].map) < operands[i].map_bytes) return i;
  return -1;
}

[[noreturn]] void wild(char* address, int bytes, bool write, uint64_t pc) {
  int nearest = -1;
  uint64_t best = 1ull << 32;
  for (int i = 0; i < NUM_OPERANDS; ++i) {
    if (!operands[i].map) continue;
    const char* low = operands[i].map;
    const char* high = low + operands[i].map_bytes;
    const uint64_t distance = static_cast<uint64_t>(address < low ? low - address : address - high);
    if (distance < best) {
      best = distance;
      nearest = i;
    }
  }
  if (Finding* f = report(Kind::wild, pc, nearest)) {
    f->write = write;
    f->bytes = bytes;
    f->offset = static_cast<int64_t>(reinterpret_cast<uintptr_t>(address));
    if (nearest >= 0) {
      f->offset = address - operands[nearest].data;
      locate(operands[nearest], floor_div(f->offset, operands[nearest].item), &f->row, &f->col);
    }
  }
  abandon_block();
}

bool in_shared(const char* address) {
  return static_cast<size_t>(address - shared_low) <
         static_cast<size_t>(shared_high - shared_low);
}

bool is_guard(const char* address) {
  for (int i = 0; i < request.guard_count; ++i)
    if (address - shared_low == request.guards[i]) return true;
  return false;
}

// Checks that a shared access lies in what the block asked for.
bool shared_exists(char* address, int bytes, bool write, uint64_t pc) {
  const char* dynamic = reinterpret_cast<char*>(tcgemm_dynamic_shared);
  if (address + bytes <= dynamic || address >= dynamic + MAX_SHARED ||
      (address >= dynamic && address + bytes <= dynamic + dynamic_shared_bytes))
    return true;
  if (request.check) {
    if (Finding* f = shared_finding(Kind::shared_bounds, pc, address, bytes, write))
      f->offset = address - dynamic;
  }
  return false;
}

void log(const Thread& t, char* address, int bytes, bool write, uint8_t space, uint64_t pc) {
  if (!request.count || bytes == 0) return;
  logs[t.warp][t.lane].push_back({reinterpret_cast<uint64_t>(address), 0,
                                  static_cast<uint32_t>(pc), static_cast<uint8_t>(bytes), space,
                                  t.lane, write, Entry::access, 0});
}

void access(void* pointer, int bytes, bool write, int alignment, uint64_t pc) {
  Thread* t = current;
  if (!t) return;
  char* address = static_cast<char*>(pointer);
  if (static_cast<size_t>(address - t->stack) < STACK_BYTES) return;
  if (in_shared(address)) {
    if (bytes == 1 && is_guard(address)) return;
    if (!shared_exists(address, bytes, write, pc)) return;
    if (request.check) {
      if (reinterpret_cast<uintptr_t>(address) % alignment) misaligned(pc, -1, address, bytes, write);
      check_shared(*t, address, bytes, write, pc);
    }
    log(*t, address, bytes, write, SHARED, pc);
    return;
  }
  const int operand = operand_at(address);
  if (operand >= 0) {
    if (request.check) {
      if (reinterpret_cast<uintptr_t>(address) % alignment)
        misaligned(pc, operand, address, bytes, write);
      check_global(operand, address, bytes, write, pc);
    }
    log(*t, address, bytes, write, static_cast<uint8_t>(operand), pc);
    return;
  }
  if ((address >= image_low && address < image_high) ||
      (address >= params_low && address < params_high) || is_lent(address))
    return;
  wild(address, bytes, write, pc);
}

void trace(uint64_t sector, bool write) {
  if (trace_full || !traces) return;
  if (worker->traced == TRACE_ENTRIES) {
    trace_full = true;
    return;
  }
  traces[static_cast<uint64_t>(worker_index()) * TRACE_ENTRIES + worker->traced++] =
      static_cast<uint32_t>(sector << 1 | write);
}

void serve_global(const Entry* const* entries, int count) {
  uint64_t sectors[32 * 3];
  int n = 0;
  const Entry& first = *entries[0];
  const Operand& o = operands[first.space];
  const uint64_t base = reinterpret_cast<uint64_t>(o.map);
  uint64_t bytes = 0;
  bool sorted = true;
  for (int i = 0; i < count; ++i) {
    const Entry& e = *entries[i];
    bytes += e.bytes;
    const uint64_t low = (e.address - base) / 32, high = (e.address + e.bytes - 1 - base) / 32;
    for (uint64_t s = low; s <= high; ++s) {
      if (n && sectors[n - 1] == s) continue;
      sorted &= n == 0 || sectors[n - 1] < s;
      sectors[n++] = s;
    }
  }
  if (!sorted) {
    std::sort(sectors, sectors + n);
    n = static_cast<int>(std::unique(sectors, sectors + n) - sectors);
  }
  Counters& c = worker->counters;
  c.global_requests[first.write] += 1;
  c.global_sectors[first.write] += static_cast<uint64_t>(n);
  c.global_bytes[first.write] += bytes;
  c.operand_bytes[first.space] += bytes;
  c.operand_sectors[first.space] += static_cast<uint64_t>(n);
  for (int i = 0; i < n; ++i) trace(o.first_sector + sectors[i], first.write);
}

// Whether each lane reads what the lane `other` away (1 or 2) reads, as far as that one takes part.
bool neighbours_agree(const Entry* const* entries, int count, int other) {
  const Entry* by_lane[32] = {};
  for (int i = 0; i < count; ++i) by_lane[entries[i]->lane] = entries[i];
  for (int i = 0; i < count; ++i) {
    const Entry* neighbour = by_lane[entries[i]->lane ^ other];
    if (neighbour && neighbour->address != entries[i]->address) return false;
  }
  return true;
}

// Words of 4 bytes lie in 32 banks; a wavefront takes one word of each. Vectors of 8 bytes are
// served by half warps, of 16 bytes by quarter warps; loads of which neighbouring lanes share
// theirs, by twice as many lanes at once.
void serve_shared(const Entry* const* entries, int count) {
  const Entry& first = *entries[0];
  int lanes_per_phase = first.bytes <= 4 ? 32 : first.bytes == 8 ? 16 : 8;
  if (!first.write && lanes_per_phase < 32 &&
      (neighbours_agree(entries, count, 1) || neighbours_agree(entries, count, 2)))
    lanes_per_phase *= 2;
  Counters& c = worker->counters;
  c.shared_requests[first.write] += 1;
  int i = 0;
  while (i < count) {
    const int phase = entries[i]->lane / lanes_per_phase;
    uint64_t words[64];
    int n = 0;
    for (; i < count && entries[i]->lane / lanes_per_phase == phase; ++i) {
      const Entry& e = *entries[i];
      c.shared_bytes[first.write] += e.bytes;
      for (uint64_t w = e.address / 4; w <= (e.address + e.bytes - 1) / 4 && n < 64; ++w)
        if (!n || words[n - 1] != w) words[n++] = w;
    }
    std::sort(words, words + n);
    n = static_cast<int>(std::unique(words, words + n) - words);
    uint8_t depth[32] = {};
    int deepest = 0;
    for (int k = 0; k < n; ++k) deepest = std::max<int>(deepest, ++depth[words[k] & 31]);
    c.shared_wavefronts[first.write] += static_cast<uint64_t>(deepest);
    c.shared_ideal[first.write] += static_cast<uint64_t>((n + 31) / 32);
  }
}

// Sorts, and counts those that differ.
int distinct(uint64_t* values, int n) {
  std::sort(values, values + n);
  return static_cast<int>(std::unique(values, values + n) - values);
}

// The shared-memory side of a copy through the L1: quarter warps, in as many passes as lanes share
// a bank's 16 bytes, and in each pass a wavefront per line of 128 bytes that it reads.
void write_through_l1(const Entry* const* entries, int count) {
  Counters& c = worker->counters;
  for (int i = 0; i < count;) {
    const int quarter = entries[i]->lane / 8;
    const int start = i;
    for (; i < count && entries[i]->lane / 8 == quarter; ++i) {}
    int pass_of[8], passes = 1;
    for (int e = start; e < i; ++e) {
      int& pass = pass_of[e - start] = 0;
      for (int before = start; before < e; ++before) {
        const uint64_t a = entries[before]->address / 16, b = entries[e]->address / 16;
        if (a != b && a % 8 == b % 8) pass = std::max(pass, pass_of[before - start] + 1);
      }
      passes = std::max(passes, pass + 1);
    }
    int wavefronts = 0;
    for (int pass = 0; pass < passes; ++pass) {
      uint64_t lines[8];
      int n = 0;
      for (int e = start; e < i; ++e)
        if (pass_of[e - start] == pass) lines[n++] = entries[e]->from / 128;
      wavefronts += distinct(lines, n);
    }
    c.shared_wavefronts[1] += static_cast<uint64_t>(wavefronts);
    c.shared_ideal[1] += static_cast<uint64_t>(wavefronts - (passes - 1));
  }
}

// A copy past the L1: sectors go from the L2 to their place in shared memory. One whose halves lie
// in two aligned 32-byte places there is fetched for each of them: rows that begin at a multiple of
// 16 bytes but not of 32, a padded tile's odd ones, are fetched twice. A wavefront writes what comes
// from one line to one line of 128 bytes, and of misplaced sectors one half.
void write_past_l1(const Entry* const* entries, int count) {
  uint64_t pieces[32];
  for (int i = 0; i < count; ++i) {
    const uint64_t from = entries[i]->from, to = entries[i]->address;
    const uint64_t half = (to / 16 ^ from / 16) & 1 ? 1 + (from / 16 & 1) : 0;
    pieces[i] = from / 128 << 24 | (to / 128 & 0xfffff) << 4 | half;
  }
  const uint64_t wavefronts = static_cast<uint64_t>(distinct(pieces, count));
  worker->counters.shared_wavefronts[1] += wavefronts;
  worker->counters.shared_ideal[1] += wavefronts;
}

// cp.async: a load of global memory and a store to shared memory in one request.
void serve_copy(const Entry* const* entries, int count) {
  Counters& c = worker->counters;
  const Entry* reading[32];
  int n = 0;
  for (int i = 0; i < count; ++i)
    if (entries[i]->from) reading[n++] = entries[i];
  if (n == 0 || entries[0]->bytes < 16) serve_shared(entries, count);
  if (n == 0) return;
  const bool through_l1 = reading[0]->kind == Entry::copy_through_l1;
  const int operand = operand_at(reinterpret_cast<char*>(reading[0]->from));
  const Operand& o = operands[operand];
  const uint64_t base = reinterpret_cast<uint64_t>(o.map);
  uint64_t sectors[32];
  for (int i = 0; i < n; ++i) {
    const uint64_t place = through_l1 ? 0 : reading[i]->address / 32 & 0xfffff;
    sectors[i] = (reading[i]->from - base) / 32 << 20 | place;
    c.global_bytes[0] += reading[i]->read;
    c.operand_bytes[operand] += reading[i]->read;
  }
  const int fetched = distinct(sectors, n);
  c.global_requests[0] += 1;
  c.global_sectors[0] += static_cast<uint64_t>(fetched);
  c.operand_sectors[operand] += static_cast<uint64_t>(fetched);
  for (int i = 0; i < fetched; ++i) trace(o.first_sector + (sectors[i] >> 20), false);
  if (reading[0]->bytes < 16) return;
  c.shared_requests[1] += 1;
  c.shared_bytes[1] += static_cast<uint64_t>(count) * 16;
  if (through_l1)
    write_through_l1(reading, n);
  else
    write_past_l1(reading, n);
}

void serve(const Entry* const* entries, int count) {
  if (entries[0]->kind != Entry::access)
    serve_copy(entries, count);
  else if (entries[0]->space == SHARED)
    serve_shared(entries, count);
  else
    serve_global(entries, count);
}

// A request of which each lane asks for `bytes`; where null the lane asks for nothing.
void check_and_serve(const Thread* lanes, char* const* addresses, int bytes, bool store,
                     uint64_t pc) {
  Entry entries[32];
  const Entry* pointers[32];
  int n = 0;
  Thread* const running = current;
  for (int l = 0; l < 32; ++l) {
    char* address = addresses[l];
    if (!address) continue;
    current = const_cast<Thread*>(&lanes[l]);
    uint8_t space;
    if (in_shared(address)) {
      if (!shared_exists(address, bytes, store, pc)) continue;
      if (request.check) check_shared(*current, address, bytes, store, pc);
      space = SHARED;
    } else {
      const int operand = operand_at(address);
      // A fragment staged in a thread's own memory: nothing that others see.
      if (operand < 0) {
        if (static_cast<size_t>(address - threads[0].stack) < STACK_BYTES * MAX_THREADS) continue;
        wild(address, bytes, store, pc);
      }
      if (request.check) check_global(operand, address, bytes, store, pc);
      space = static_cast<uint8_t>(operand);
    }
    entries[n] = {reinterpret_cast<uint64_t>(address), 0, static_cast<uint32_t>(pc),
                  static_cast<uint8_t>(bytes), space, static_cast<uint8_t>(l), store,
                  Entry::access, 0};
    pointers[n] = &entries[n];
    ++n;
  }
  current = running;
  if (n && request.count) serve(pointers, n);
}

}  // namespace

int64_t elements_of_c() {
  const Operand& c = operands[C_OPERAND];
  return c.batches * c.rows * c.cols;
}

void start_run() {
  if (!cells) {
    const size_t bytes = (static_cast<size_t>(shared_high - shared_low) + 16) * sizeof(Cell);
    cells = static_cast<Cell*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  }
  block_total = uint64_t(grid_dim.x) * grid_dim.y * grid_dim.z;
  if (request.check && c_writers)
    std::memset(c_writers, 0, static_cast<size_t>(elements_of_c()) * 4);
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

void start_block() {
  for (int w = 0; w < warp_count; ++w) {
    warp_clock[w] = 0;
    for (int u = 0; u < warp_count; ++u) seen[w][u] = -1;
    for (auto& log : logs[w]) log.clear();
  }
  const size_t dynamic = static_cast<size_t>(
      reinterpret_cast<char*>(tcgemm_dynamic_shared) - shared_low);
  auto clear = [](size_t low, size_t high) {
    std::memset(static_cast<void*>(&cells[low >> granule_shift]), 0,
                ((high - low) >> granule_shift) * sizeof(Cell));
  };
  clear(0, dynamic + dynamic_shared_bytes);
  clear(dynamic + MAX_SHARED, static_cast<size_t>(shared_high - shared_low));
  ++worker->counters.blocks;
  worker->counters.threads += static_cast<uint64_t>(thread_count);
  if (traces)
    block_traces[block_number] = {worker_index(), 0, worker->traced};
}

void end_block() {
  for (int w = 0; w < warp_count; ++w) converge(w);
  if (traces)
    block_traces[block_number].count =
        static_cast<uint32_t>(worker->traced - block_traces[block_number].first);
}

void converge(int w) {
  if (!request.count) return;
  auto& lanes = logs[w];
  const std::vector<Entry>* first = nullptr;
  const std::vector<Entry>* some[32];
  int n = 0;
  bool same = true;
  for (auto& log : lanes) {
    if (log.empty()) continue;
    if (!first) first = &log;
    same &= log.size() == first->size();
    some[n++] = &log;
  }
  if (!first) return;
  for (int i = 1; i < n && same; ++i)
    for (size_t e = 0; e < first->size() && same; ++e)
      same = (*some[i])[e].pc == (*first)[e].pc && (*some[i])[e].space == (*first)[e].space;
  const Entry* entries[32];
  if (same) {
    for (size_t e = 0; e < first->size(); ++e) {
      for (int i = 0; i < n; ++i) entries[i] = &(*some[i])[e];
      serve(entries, n);
    }
  } else {
    // Some lanes went another way: an instruction's n-th execution is one request of the lanes
    // that reached it.
    struct Key {
      uint32_t pc, occurrence;
      const Entry* entry;
    };
    std::vector<Key> keys;
    std::vector<std::pair<uint32_t, uint32_t>> met;
    for (int i = 0; i < n; ++i) {
      met.clear();
      for (const Entry& e : *some[i]) {
        uint32_t occurrence = 0;
        auto at = std::find_if(met.begin(), met.end(),
                               [&](const auto& pair) { return pair.first == e.pc * 4 + e.space; });
        if (at == met.end())
          met.push_back({e.pc * 4 + e.space, 0});
        else
          occurrence = ++at->second;
        keys.push_back({e.pc * 4 + e.space, occurrence, &e});
      }
    }
    std::stable_sort(keys.begin(), keys.end(), [](const Key& a, const Key& b) {
      return a.occurrence != b.occurrence ? a.occurrence < b.occurrence : a.pc < b.pc;
    });
    for (size_t i = 0; i < keys.size();) {
      int count = 0;
      const size_t start = i;
      for (; i < keys.size() && keys[i].pc == keys[start].pc &&
             keys[i].occurrence == keys[start].occurrence;
           ++i)
        entries[count++] = keys[i].entry;
      serve(entries, count);
    }
  }
  for (auto& log : lanes) log.clear();
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

void count_mma(int m, int n, int k, Element in, Element out, int instruction) {
  if (request.count && instruction == WGMMA) {
    // Each of four warps asks; m rows of A and n columns of B come, 32 bytes of K each.
    const uint64_t wavefronts = static_cast<uint64_t>(m + n) * 32 / 128;
    worker->counters.shared_requests[0] += 4;
    worker->counters.shared_wavefronts[0] += wavefronts;
    worker->counters.shared_ideal[0] += wavefronts;
  }
  const MmaCount kind{m, n, k, static_cast<int32_t>(in), static_cast<int32_t>(out), instruction, 0};
  for (MmaCount& c : worker->mma) {
    if (c.count && std::memcmp(&c, &kind, offsetof(MmaCount, count)) != 0) continue;
    const uint64_t count = c.count + 1;
    c = kind;
    c.count = count;
    return;
  }
}

// A fragment's load or store as the hardware's instructions see it: for A and B parts of 8 rows
// (along the leading dimension) by four lanes with 4 bytes each, as ldmatrix and the 4-byte loads
// from global memory have it; for the accumulator one instruction per pair of neighbours in a row.
void matrix_access(const Thread* lanes, bool store) {
  const auto& g = *static_cast<const MatrixArguments*>(lanes[0].arguments);
  const int bytes = element_bytes(g.kind.element);
  const uint64_t pc = lanes[0].pc;
  if (request.check) {
    const int operand = operand_at(g.matrix);
    // CUDA asks for 32 bytes. From shared memory the loads read the tile row by row, and a multiple
    // of the row's bytes is enough: 16 for 8 float16 or 16 int8.
    const int row_bytes =
        (g.column ? fragment_rows(g.kind) : fragment_cols(g.kind)) * bytes;
    const int whole = operand < 0 ? std::min(32, row_bytes) : 32;
    if (reinterpret_cast<uintptr_t>(g.matrix) % whole)
      misaligned(pc, operand, g.matrix, whole, store);
    if (int64_t(g.ld) * bytes % 16)
      misaligned(pc, operand, g.matrix + int64_t(g.ld) * bytes, 16, store);
  }
  char* addresses[32];
  if (g.kind.use == Use::accumulator) {
    const int count = fragment_rows(g.kind) * fragment_cols(g.kind) / 32;
    const int step = g.column ? 1 : 2;
    for (int e = 0; e < count; e += step) {
      for (int l = 0; l < 32; ++l) {
        int row, col;
        element_position(g.kind, l, e, &row, &col);
        const int64_t at = g.column ? int64_t(col) * g.ld + row : int64_t(row) * g.ld + col;
        addresses[l] = g.matrix + at * bytes;
      }
      check_and_serve(lanes, addresses, step * bytes, store, pc);
    }
    return;
  }
  const int rows = fragment_rows(g.kind), cols = fragment_cols(g.kind);
  const int major = g.column ? cols : rows, minor = g.column ? rows : cols;
  const int width = std::min(std::max(1, 4 / bytes), minor / 4);
  for (int j = 0; j < minor; j += 4 * width) {
    for (int i = 0; i < major; i += 8) {
      for (int l = 0; l < 32; ++l) {
        const int row = i + l / 4, col = j + l % 4 * width;
        addresses[l] =
            row < major ? g.matrix + (int64_t(row) * g.ld + col) * bytes : nullptr;
      }
      check_and_serve(lanes, addresses, width * bytes, store, pc);
    }
  }
}

void ldmatrix_access(const Thread* lanes) {
  const auto& g = *static_cast<const LdmatrixArguments*>(lanes[0].arguments);
  const uint64_t pc = lanes[0].pc;
  for (int i = 0; i < g.count; ++i) {
    char* addresses[32];
    for (int l = 0; l < 32; ++l) {
      const auto& row = *static_cast<const LdmatrixArguments*>(lanes[8 * i + l / 4].arguments);
      char* address = const_cast<char*>(row.row);
      if (request.check && reinterpret_cast<uintptr_t>(address) % 16)
        misaligned(pc, -1, address, 16, false);
      addresses[l] = address + l % 4 * 4;
    }
    check_and_serve(lanes, addresses, 4, false, pc);
  }
}

// Until it lands a copy's bytes are nobody's: to issue it is a write, and any access is an error.
void async_issued(const Copy& copy) {
  Thread& t = *current;
  char* from = const_cast<char*>(copy.from);
  if (!in_shared(copy.to)) wild(copy.to, copy.bytes, true, copy.pc);
  if (!shared_exists(copy.to, copy.bytes, true, copy.pc)) return;
  const int operand = copy.source_bytes ? operand_at(from) : -1;
  if (copy.source_bytes && operand < 0) wild(from, copy.source_bytes, false, copy.pc);
  if (request.check) {
    if (reinterpret_cast<uintptr_t>(copy.to) % copy.bytes)
      misaligned(copy.pc, -1, copy.to, copy.bytes, true);
    if (operand >= 0) {
      if (reinterpret_cast<uintptr_t>(from) % copy.bytes)
        misaligned(copy.pc, operand, from, copy.bytes, false);
      check_global(operand, from, copy.source_bytes, false, copy.pc);
    }
    check_shared(t, copy.to, copy.bytes, true, copy.pc);
    const size_t first = static_cast<size_t>(copy.to - shared_low) >> granule_shift;
    for (size_t i = first; i < first + (static_cast<size_t>(copy.bytes) >> granule_shift); ++i) {
      cells[i].in_flight = epoch_of(t);
      cells[i].in_flight_pc = static_cast<uint32_t>(copy.pc);
    }
  }
  ++worker->counters.async_copies;
  log(t, copy.to, copy.bytes, true, SHARED, copy.pc);
  if (!request.count) return;
  Entry& logged = logs[t.warp][t.lane].back();
  logged.kind = copy.through_l1 ? Entry::copy_through_l1 : Entry::copy;
  if (operand < 0) return;
  logged.from = reinterpret_cast<uint64_t>(from);
  logged.read = static_cast<uint8_t>(copy.source_bytes);
}

void shared_read(char* address, int bytes, uint64_t pc) {
  if (!shared_exists(address, bytes, false, pc)) return;
  if (request.check) check_shared(*current, address, bytes, false, pc);
}

void shared_write(char* address, int bytes, uint64_t pc) {
  if (!shared_exists(address, bytes, true, pc)) return;
  if (request.check) {
    if (reinterpret_cast<uintptr_t>(address) % 16) misaligned(pc, -1, address, bytes, true);
    check_shared(*current, address, bytes, true, pc);
  }
  log(*current, address, bytes, true, SHARED, pc);
}

void async_write_begins(char* to, int bytes, uint64_t pc) {
  if (!shared_exists(to, bytes, true, pc) || !request.check) return;
  check_shared(*current, to, bytes, true, pc);
  const size_t first = static_cast<size_t>(to - shared_low) >> granule_shift;
  for (size_t i = first; i < first + (static_cast<size_t>(bytes) >> granule_shift); ++i) {
    cells[i].in_flight = epoch_of(*current);
    cells[i].in_flight_pc = static_cast<uint32_t>(pc);
  }
}

// Until the read has ended, no clock orders a write after it.
void async_read_begins(char* from, int bytes, uint64_t pc) {
  if (!shared_exists(from, bytes, false, pc) || !request.check) return;
  check_shared(*current, from, bytes, false, pc);
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

void bulk_global(const char* address, int64_t bytes, bool write, uint64_t pc) {
  char* at = const_cast<char*>(address);
  const int operand = operand_at(at);
  if (operand < 0 && is_lent(at)) return;
  if (operand < 0) wild(at, static_cast<int>(bytes), write, pc);
  if (request.check) check_global(operand, at, static_cast<int>(bytes), write, pc);
  if (!request.count) return;
  const uint64_t base = reinterpret_cast<uint64_t>(operands[operand].map);
  const uint64_t low = (reinterpret_cast<uint64_t>(at) - base) / 32;
  const uint64_t high = (reinterpret_cast<uint64_t>(at) + static_cast<uint64_t>(bytes) - 1 - base) / 32;
  Counters& c = worker->counters;
  c.global_bytes[write] += static_cast<uint64_t>(bytes);
  c.global_sectors[write] += high - low + 1;
  c.operand_bytes[operand] += static_cast<uint64_t>(bytes);
  c.operand_sectors[operand] += high - low + 1;
  for (uint64_t s = low; s <= high; ++s) trace(operands[operand].first_sector + s, write);
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
    cells[i].writer = epoch_of(*current);
    cells[i].writer_pc = static_cast<uint32_t>(copy.pc);
  }
}

namespace {

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

void end_launch() {
  if (!request.count || request.sms <= 0 || control->stop.load()) return;
  model_l2();
  if (!traces) return;
  munmap(traces, trace_bytes);
  munmap(block_traces, block_total * sizeof(BlockTrace));
  traces = nullptr;
}

void end_run() {
  if (control->stop.load()) return;
  const Operand& c = operands[C_OPERAND];
  if (request.check && c.decodable) {
    int64_t missing = 0, first = -1;
    for (int64_t i = 0; i < elements_of_c(); ++i) {
      if (c_writers[i]) continue;
      if (first < 0) first = i;
      ++missing;
    }
    if (missing) {
      if (Finding* f = report(Kind::not_written, 0, C_OPERAND)) {
        f->row = first / c.cols;
        f->col = first % c.cols;
        f->times = missing;
      }
    }
  }
  if (!l2_of_run || untraced) return;
  l2_of_run->flush();
  control->l2.modelled = 1;
}

}  // namespace observe

void note_atomic(void* address) {
  if (!current) return;
  ++worker->counters.atomics;
  const int operand = observe::operand_at(static_cast<char*>(address));
  if (operand != C_OPERAND) return;
  const Operand& o = operands[C_OPERAND];
  if (!o.decodable) return;
  int64_t row, col;
  if (observe::locate(o, observe::floor_div(static_cast<char*>(address) - o.data, o.item), &row,
                      &col))
    c_writers[row * o.cols + col] = static_cast<int32_t>(block_number) + 1;
}

}  // namespace tcgemm::simulator

// The hooks that -fsanitize=thread calls, in place of the sanitizer's own.
#define HOOK extern "C" __attribute__((visibility("default"), noinline)) void
#define CALLER                                    \
  tcgemm::simulator::relative_pc(                 \
      __builtin_extract_return_addr(__builtin_return_address(0)))
#define HOOKS(BYTES)                                                                  \
  HOOK __tsan_read##BYTES(void* p) {                                                  \
    tcgemm::simulator::observe::access(p, BYTES, false, BYTES, CALLER);               \
  }                                                                                   \
  HOOK __tsan_write##BYTES(void* p) {                                                 \
    tcgemm::simulator::observe::access(p, BYTES, true, BYTES, CALLER);                \
  }                                                                                   \
  HOOK __tsan_unaligned_read##BYTES(void* p) {                                        \
    tcgemm::simulator::observe::access(p, BYTES, false, 1, CALLER);                   \
  }                                                                                   \
  HOOK __tsan_unaligned_write##BYTES(void* p) {                                       \
    tcgemm::simulator::observe::access(p, BYTES, true, 1, CALLER);                    \
  }                                                                                   \
  HOOK __tsan_volatile_read##BYTES(void* p) {                                         \
    tcgemm::simulator::observe::access(p, BYTES, false, BYTES, CALLER);               \
  }                                                                                   \
  HOOK __tsan_volatile_write##BYTES(void* p) {                                        \
    tcgemm::simulator::observe::access(p, BYTES, true, BYTES, CALLER);                \
  }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
HOOK __tsan_read_range(void* p, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 16)
    tcgemm::simulator::observe::access(static_cast<char*>(p) + i,
                                       static_cast<int>(std::min<size_t>(16, bytes - i)), false, 1,
                                       CALLER);
}
HOOK __tsan_write_range(void* p, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 16)
    tcgemm::simulator::observe::access(static_cast<char*>(p) + i,
                                       static_cast<int>(std::min<size_t>(16, bytes - i)), true, 1,
                                       CALLER);
}
HOOK __tsan_init() {}
HOOK __tsan_func_entry(void*) {}
HOOK __tsan_func_exit() {}
HOOK __tsan_vptr_update(void**, void*) {}
HOOK __tsan_vptr_read(void**) {}

// Atomic operations, of host code for the most part: carried out, neither checked nor counted.
#define ATOMIC_HOOKS(BITS)                                                                     \
  using Atomic##BITS = uint##BITS##_t;                                                         \
  ATOMIC_HOOK(Atomic##BITS) __tsan_atomic##BITS##_load(Atomic##BITS* p, int) {                 \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                               \
  }                                                                                            \
  ATOMIC_HOOK(void) __tsan_atomic##BITS##_store(Atomic##BITS* p, Atomic##BITS v, int) {        \
    __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                  \
  }                                                                                            \
  ATOMIC_HOOK(Atomic##BITS) __tsan_atomic##BITS##_exchange(Atomic##BITS* p, Atomic##BITS v,    \
                                                           int) {                              \
    return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                        \
  }                                                                                            \
  ATOMIC_HOOK(Atomic##BITS) __tsan_atomic##BITS##_fetch_add(Atomic##BITS* p, Atomic##BITS v,   \
                                                            int) {                             \
    return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);                                         \
  }                                                                                            \
  ATOMIC_HOOK(Atomic##BITS) __tsan_atomic##BITS##_fetch_sub(Atomic##BITS* p, Atomic##BITS v,   \
                                                            int) {                             \
    return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST);                                         \
  }                                                                                            \
  ATOMIC_HOOK(int) __tsan_atomic##BITS##_compare_exchange_strong(                              \
      Atomic##BITS* p, Atomic##BITS* expected, Atomic##BITS v, int, int) {                     \
    return __atomic_compare_exchange_n(p, expected, v, false, __ATOMIC_SEQ_CST,                \
                                       __ATOMIC_SEQ_CST);                                      \
  }                                                                                            \
  ATOMIC_HOOK(int) __tsan_atomic##BITS##_compare_exchange_weak(                                \
      Atomic##BITS* p, Atomic##BITS* expected, Atomic##BITS v, int, int) {                     \
    return __atomic_compare_exchange_n(p, expected, v, true, __ATOMIC_SEQ_CST,                 \
                                       __ATOMIC_SEQ_CST);                                      \
  }
#define ATOMIC_HOOK(T) extern "C" __attribute__((visibility("default"), noinline)) T
ATOMIC_HOOKS(8)
ATOMIC_HOOKS(16)
ATOMIC_HOOKS(32)
ATOMIC_HOOKS(64)
HOOK __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
HOOK __tsan_atomic_signal_fence(int) {}
