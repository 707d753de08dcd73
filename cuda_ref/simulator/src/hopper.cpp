// mbarriers, bulk tensor copies and wgmma.
#include "hopper.hpp"

#include <algorithm>
#include <deque>

#include "internal.hpp"

namespace tcgemm::simulator {

namespace {

struct Load {
  uint32_t shared, barrier;
  CUtensorMap map;
  int inner, outer, batch;
  int32_t issuer;
  uint64_t pc;
};

struct Mbarrier {
  uint32_t address;
  int64_t count, pending, bytes;  // arrivals of a phase; those and the bytes still to come
  uint32_t phase;
  std::vector<Load> loads;  // issued, not landed
  int64_t clocks[MAX_WARPS];
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

struct Multiply {
  Element element;
  int n;
  bool a_mn_major, b_mn_major, accumulate;
  uint64_t a, b;
  void* d[32];
  const uint32_t* a_registers[32];  // null where A is in shared memory
  Site site;
  uint64_t pc;
};
struct Multiplies {
  std::deque<Multiply> issued;
  std::vector<size_t> groups;
  size_t uncommitted = 0;
} multiplies[MAX_WARPS];

#define CALLER relative_pc(__builtin_extract_return_addr(__builtin_return_address(0)))

constexpr uint32_t ROW_BYTES = 128;  // of a box in shared memory, as wide as the swizzle

// The 128-byte swizzle: 16-byte units are exchanged within each 1024 bytes.
uint32_t swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

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
  if (Finding* f = report(Kind::deadlock, pc)) f->site = site;
  abandon_block();
}

void complete(Mbarrier& b) {
  if (b.pending != 0 || b.bytes != 0) return;
  b.phase ^= 1;
  b.pending = b.count;
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

// As if `thread` ran: what it does is its own, wherever the scheduler stands.
template <typename Body>
void as_thread(Thread& thread, Body body) {
  Thread* const running = current;
  current = &thread;
  body();
  current = running;
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
        if constexpr (OBSERVE) observe::async_lands({to, nullptr, 16, 0, load.pc});
      }
      if constexpr (OBSERVE) {
        if (inside)
          observe::bulk_global(line + first * map.item_bytes, inside * map.item_bytes, false,
                               load.pc);
      }
    }
  });
  if constexpr (OBSERVE) observe::release(threads[load.issuer].warp, b.clocks);
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

template <typename Sum>
Sum element_at(Element element, uint32_t address) {
  const void* at = shared_pointer(swizzled(address));
  uint32_t bits = 0;
  std::memcpy(&bits, at, static_cast<size_t>(element_bytes(element)));
  switch (element) {
    case Element::f16: return Sum(float_of_half(static_cast<uint16_t>(bits)));
    case Element::bf16: return Sum(float_of_bfloat16(static_cast<uint16_t>(bits)));
    case Element::tf32: return Sum(bits_as<float>(bits & 0xffffe000));
    case Element::e4m3: return Sum(float_of_fp8<3>(static_cast<uint8_t>(bits)));
    case Element::e5m2: return Sum(float_of_fp8<2>(static_cast<uint8_t>(bits)));
    case Element::s8: return static_cast<Sum>(static_cast<int8_t>(bits));
    default: return static_cast<Sum>(bits);
  }
}

// Where element (mn, k) of an operand lies: see ptx/wgmma.cuh for the two layouts.
uint32_t operand_address(uint64_t descriptor, bool mn_major, int mn, int k, int item) {
  const uint32_t start = static_cast<uint32_t>(descriptor & 0x3fff) << 4;
  const uint32_t leading = static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4;
  const uint32_t stride = static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4;
  if (mn_major)
    return start + static_cast<uint32_t>(mn / 64) * leading + static_cast<uint32_t>(k / 8) * stride +
           static_cast<uint32_t>(k % 8 * 128 + mn % 64 * 2);
  return start + static_cast<uint32_t>(mn / 8) * stride +
         static_cast<uint32_t>(mn % 8 * 128 + k * item);
}

// Sum: float, or uint32_t for integers, whose sums wrap.
template <typename Sum>
void multiply_as(const Multiply& m, int warp) {
  Sum a[16][32], b[32][256];
  const int first_row = warp % 4 * 16, item = element_bytes(m.element), depth = 32 / item;
  const bool registers = m.a_registers[0] != nullptr;
  for (int i = 0; i < 16; ++i)
    for (int k = 0; k < depth; ++k)
      a[i][k] = registers
                    ? Sum(bits_as<float>(m.a_registers[i % 8 * 4 + k % 4][i / 8 + k / 4 * 2] & 0xffffe000))
                    : element_at<Sum>(m.element, operand_address(m.a, m.a_mn_major, first_row + i,
                                                                 k, item));
  for (int j = 0; j < m.n; ++j)
    for (int k = 0; k < depth; ++k)
      b[k][j] = element_at<Sum>(m.element, operand_address(m.b, m.b_mn_major, j, k, item));
  if constexpr (OBSERVE) {
    // 16 bytes are 8 elements of 16 bits along K, or along M or N.
    auto read = [&](uint64_t descriptor, bool mn_major, int mn_first, int mn_count) {
      for (int mn = 0; mn < mn_count; mn += mn_major ? 8 : 1)
        for (int k = 0; k < depth; k += mn_major ? 1 : 16 / item)
          observe::shared_read(
              static_cast<char*>(shared_pointer(
                  swizzled(operand_address(descriptor, mn_major, mn_first + mn, k, item)))),
              16, m.pc);
    };
    if (!registers) read(m.a, m.a_mn_major, first_row, 16);
    read(m.b, m.b_mn_major, 0, m.n);
    constexpr Element OUT = std::is_same_v<Sum, float> ? Element::f32 : Element::s32;
    if (warp % 4 == 0) observe::count_mma(64, m.n, depth, m.element, OUT, 2);
  }
  for (int l = 0; l < 32; ++l) {
    Sum* d = static_cast<Sum*>(m.d[l]);
    for (int e = 0; e < m.n / 2; ++e) {
      const int row = l / 4 + e / 2 % 2 * 8, col = e / 4 * 8 + l % 4 * 2 + e % 2;
      Sum sum = m.accumulate ? d[e] : Sum(0);
      for (int k = 0; k < depth; ++k) sum += a[row][k] * b[k][col];
      d[e] = sum;
    }
  }
}

void multiply_now(const Multiply& m, int warp) {
  if (m.element == Element::s8 || m.element == Element::u8)
    multiply_as<uint32_t>(m, warp);
  else
    multiply_as<float>(m, warp);
}

struct WgmmaArguments {
  Multiply multiply;
  void* d;
  const void* a;
};

void issue_wgmma(Thread* lanes) {
  Multiplies& queue = multiplies[lanes[0].warp];
  Multiply m = static_cast<WgmmaArguments*>(lanes[0].arguments)->multiply;
  for (int l = 0; l < 32; ++l) {
    const WgmmaArguments& lane = *static_cast<WgmmaArguments*>(lanes[l].arguments);
    m.d[l] = lane.d;
    m.a_registers[l] = static_cast<const uint32_t*>(lane.a);
  }
  m.pc = lanes[0].pc;
  queue.issued.push_back(m);
  ++queue.uncommitted;
}

void commit_wgmma(Thread* lanes) {
  Multiplies& queue = multiplies[lanes[0].warp];
  queue.groups.push_back(queue.uncommitted);
  queue.uncommitted = 0;
}

void wait_wgmma(Thread* lanes) {
  Multiplies& queue = multiplies[lanes[0].warp];
  const size_t pending = *static_cast<size_t*>(lanes[0].arguments);
  while (queue.groups.size() > pending) {
    for (size_t i = 0; i < queue.groups.front(); ++i) {
      multiply_now(queue.issued.front(), lanes[0].warp);
      queue.issued.pop_front();
    }
    queue.groups.erase(queue.groups.begin());
  }
}

struct StmatrixArguments {
  uint32_t row;
  const uint32_t* registers;
  int count;
};

void exchange_stmatrix(Thread* lanes) {
  const int count = static_cast<StmatrixArguments*>(lanes[0].arguments)->count;
  for (int i = 0; i < count; ++i) {
    for (int r = 0; r < 8; ++r) {
      Thread& owner = lanes[8 * i + r];
      char* row = static_cast<char*>(
          shared_pointer(static_cast<StmatrixArguments*>(owner.arguments)->row));
      if constexpr (OBSERVE)
        as_thread(owner, [&] { observe::shared_write(row, 16, lanes[0].pc); });
      for (int l = 4 * r; l < 4 * r + 4; ++l)
        std::memcpy(row + l % 4 * 4,
                    &static_cast<StmatrixArguments*>(lanes[l].arguments)->registers[i], 4);
    }
  }
}

}  // namespace

void hopper_start_block() {
  mbarriers.clear();
  for (int i = 0; i < thread_count; ++i) bulk_stores[i] = {};
  for (int w = 0; w < warp_count; ++w) multiplies[w] = {};
}

void hopper_end_thread(Thread& thread) {
  for (const Store& s : bulk_stores[thread.linear].issued) store(s);
  bulk_stores[thread.linear] = {};
  const Multiplies& queue = multiplies[thread.warp];
  if (OBSERVE && request.check && !queue.issued.empty()) {
    if (Finding* f = report(Kind::not_awaited, queue.issued.front().pc))
      f->site = queue.issued.front().site;
  }
}

void mbarrier_init(uint32_t barrier, uint32_t count) {
  for (Mbarrier& b : mbarriers) {
    if (b.address != barrier) continue;
    b.count = b.pending = count;
    b.bytes = b.phase = 0;
    return;
  }
  Mbarrier& b = mbarriers.emplace_back();
  b = {barrier, count, count, 0, 0, {}, {}};
  std::fill(b.clocks, b.clocks + MAX_WARPS, -1);
}

__attribute__((noinline)) void mbarrier_arrive(uint32_t barrier, uint32_t transaction_bytes,
                                               Site site) {
  Mbarrier& b = barrier_at(barrier, site, CALLER);
  if constexpr (OBSERVE) observe::release(current->warp, b.clocks);
  b.bytes += transaction_bytes;
  --b.pending;
  complete(b);
}

__attribute__((noinline)) void mbarrier_wait(uint32_t barrier, uint32_t parity, Site site) {
  Wait wait{&barrier_at(barrier, site, CALLER), parity};
  wait_until(phase_over, &wait, "mbarrier", site);
  if constexpr (OBSERVE) observe::acquire(current->warp, wait.barrier->clocks);
}

__attribute__((noinline)) void bulk_load(uint32_t shared, const CUtensorMap* map, uint32_t barrier,
                                         int inner, int outer, int batch, Site site) {
  const uint64_t pc = CALLER;
  Mbarrier& b = barrier_at(barrier, site, pc);
  if constexpr (OBSERVE) {
    each_unit(*map, [&](uint32_t at) {
      observe::async_write_begins(
          static_cast<char*>(shared_pointer(swizzled(shared + at))), 16, pc);
    });
  }
  b.loads.push_back({shared, barrier, *map, inner, outer, batch, current->linear, pc});
}

__attribute__((noinline)) void bulk_store(const CUtensorMap* map, uint32_t shared, int inner,
                                          int outer, int batch, Site) {
  const uint64_t pc = CALLER;
  if constexpr (OBSERVE) {
    each_unit(*map, [&](uint32_t at) {
      observe::async_read_begins(static_cast<char*>(shared_pointer(swizzled(shared + at))), 16,
                                 pc);
    });
  }
  Stores& queue = bulk_stores[current->linear];
  queue.issued.push_back({*map, shared, inner, outer, batch, pc});
  ++queue.uncommitted;
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

__attribute__((noinline)) void wgmma(Element element, int n, bool a_mn_major, bool b_mn_major,
                                     void* d, uint64_t a, uint64_t b, bool accumulate,
                                     Site site) {
  WgmmaArguments arguments{
      {element, n, a_mn_major, b_mn_major, accumulate, a, b, {}, {}, site, 0}, d, nullptr};
  meet_warp(issue_wgmma, &arguments, site, CALLER);
}

__attribute__((noinline)) void wgmma_registers(int n, void* d, const void* a, uint64_t b,
                                               bool accumulate, Site site) {
  WgmmaArguments arguments{
      {Element::tf32, n, false, false, accumulate, 0, b, {}, {}, site, 0}, d, a};
  meet_warp(issue_wgmma, &arguments, site, CALLER);
}

__attribute__((noinline)) void wgmma_commit(Site site) {
  meet_warp(commit_wgmma, nullptr, site, CALLER);
}

__attribute__((noinline)) void wgmma_wait(int pending, Site site) {
  size_t left = static_cast<size_t>(pending);
  meet_warp(wait_wgmma, &left, site, CALLER);
}

__attribute__((noinline)) void stmatrix(uint32_t row, const uint32_t* registers, int count,
                                        Site site) {
  StmatrixArguments arguments{row, registers, count};
  meet_warp(exchange_stmatrix, &arguments, site, CALLER);
}

}  // namespace tcgemm::simulator
