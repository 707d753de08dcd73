// wgmma, whose operands are read at the wait for its group, and stmatrix.
#include <deque>
#include <utility>

#include "hopper_internal.hpp"

namespace tcgemm::simulator {

namespace {

struct Multiply {
  Element element;
  int n;
  bool a_mn_major, b_mn_major, accumulate;
  uint64_t a, b;
  void* d[32];
  const uint32_t* a_registers[32];  // null where A is in shared memory
  Site site;
  uint64_t pc;
  uint64_t done;  // when, by the clock of timeline.cpp
};
struct Multiplies {
  std::deque<Multiply> issued;
  std::vector<size_t> groups;
  size_t uncommitted = 0;
  bool fenced = false;  // one of its lanes has called wgmma_fence in this block
};
PerBlock<std::array<Multiplies, MAX_WARPS>> multiplies_of;  // by warp
Multiplies& multiplies(int warp) { return multiplies_of.now()[static_cast<size_t>(warp)]; }

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
          observe::wgmma_read(
              static_cast<char*>(shared_pointer(
                  swizzled(operand_address(descriptor, mn_major, mn_first + mn, k, item)))),
              16, m.site, m.pc);
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
  Multiplies& queue = multiplies(lanes[0].warp);
  Multiply m = static_cast<WgmmaArguments*>(lanes[0].arguments)->multiply;
  for (int l = 0; l < 32; ++l) {
    const WgmmaArguments& lane = *static_cast<WgmmaArguments*>(lanes[l].arguments);
    m.d[l] = lane.d;
    m.a_registers[l] = static_cast<const uint32_t*>(lane.a);
  }
  m.pc = lanes[0].pc;
  if (OBSERVE && request.check && !queue.fenced)
    report_misuse(Misuse::wgmma_fence, m.pc, m.site, 0);
  if constexpr (OBSERVE) m.done = observe::issues_wgmma(lanes[0].warp, m.n, m.site.line);
  queue.issued.push_back(m);
  ++queue.uncommitted;
}

void commit_wgmma(Thread* lanes) {
  Multiplies& queue = multiplies(lanes[0].warp);
  queue.groups.push_back(queue.uncommitted);
  queue.uncommitted = 0;
}

void wait_wgmma(Thread* lanes) {
  Multiplies& queue = multiplies(lanes[0].warp);
  const size_t pending = *static_cast<size_t*>(lanes[0].arguments);
  while (queue.groups.size() > pending) {
    for (size_t i = 0; i < queue.groups.front(); ++i) {
      if constexpr (OBSERVE)
        observe::waits(lanes[0].warp, observe::Phase::wait_wgmma, queue.issued.front().done,
                       lanes[0].site.line);
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
  bool transposed;
};

void exchange_stmatrix(Thread* lanes) {
  const auto [_, __, count, transposed] = *static_cast<StmatrixArguments*>(lanes[0].arguments);
  for (int i = 0; i < count; ++i) {
    for (int r = 0; r < 8; ++r) {
      Thread& owner = lanes[8 * i + r];
      char* row = static_cast<char*>(
          shared_pointer(static_cast<StmatrixArguments*>(owner.arguments)->row));
      if constexpr (OBSERVE)
        as_thread(owner, [&] { observe::shared_write(row, 16, lanes[0].pc); });
      for (int at = 0; at < 8; ++at) {
        const auto [m, n] = transposed ? std::pair{at, r} : std::pair{r, at};
        const Thread& holder = lanes[4 * m + n / 2];
        const uint32_t pair = static_cast<StmatrixArguments*>(holder.arguments)->registers[i];
        const auto element = static_cast<uint16_t>(pair >> n % 2 * 16);
        std::memcpy(row + 2 * at, &element, 2);
      }
    }
  }
}

}  // namespace

void wgmma_start_block() {
  for (int w = 0; w < warp_count; ++w) multiplies(w) = {};
}

void wgmma_end_thread(const Thread& thread) {
  const Multiplies& queue = multiplies(thread.warp);
  if (OBSERVE && request.check && !queue.issued.empty()) {
    if (Finding* f = report(Kind::not_awaited, queue.issued.front().pc))
      f->site = queue.issued.front().site;
  }
}

__attribute__((noinline)) void wgmma(Element element, int n, bool a_mn_major, bool b_mn_major,
                                     void* d, uint64_t a, uint64_t b, bool accumulate,
                                     Site site) {
  WgmmaArguments arguments{
      {element, n, a_mn_major, b_mn_major, accumulate, a, b, {}, {}, site, 0, 0}, d, nullptr};
  meet_warp(issue_wgmma, &arguments, site, CALLER);
}

__attribute__((noinline)) void wgmma_registers(int n, void* d, const void* a, uint64_t b,
                                               bool accumulate, Site site) {
  WgmmaArguments arguments{
      {Element::tf32, n, false, false, accumulate, 0, b, {}, {}, site, 0, 0}, d, a};
  meet_warp(issue_wgmma, &arguments, site, CALLER);
}

void wgmma_fence() { multiplies(current->warp).fenced = true; }

__attribute__((noinline)) void wgmma_commit(Site site) {
  meet_warp(commit_wgmma, nullptr, site, CALLER);
}

__attribute__((noinline)) void wgmma_wait(int pending, Site site) {
  size_t left = static_cast<size_t>(pending);
  meet_warp(wait_wgmma, &left, site, CALLER);
}

__attribute__((noinline)) void stmatrix(uint32_t row, const uint32_t* registers, int count,
                                        bool transposed, Site site) {
  StmatrixArguments arguments{row, registers, count, transposed};
  meet_warp(exchange_stmatrix, &arguments, site, CALLER);
}

}  // namespace tcgemm::simulator
