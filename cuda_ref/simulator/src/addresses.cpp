// What an address is: an element of an operand, a byte of shared memory, or nothing.
#include "observe.hpp"

extern "C" __attribute__((visibility("hidden"))) thread_local unsigned char
    tcgemm_dynamic_shared[];

namespace tcgemm::simulator {
namespace observe {

Finding* shared_finding(Kind kind, uint64_t pc, const char* address, int bytes, bool write) {
  Finding* f = report(kind, pc);
  if (!f) return nullptr;
  f->offset = address - shared_low;
  f->bytes = bytes;
  f->write = write;
  return f;
}

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

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

void check_global(int operand, char* address, int bytes, bool write, uint64_t pc, bool atomic) {
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
    if (operand != C_OPERAND) {
      if (!write || is_result(operand)) continue;
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
    // What a block wrote itself it may add to atomically, and others still may not.
    const int32_t last = __atomic_load_n(&writer, __ATOMIC_RELAXED);
    const int32_t now = me | (atomic && last != me ? BY_ATOMIC : 0);
    const int32_t before = write ? __atomic_exchange_n(&writer, now, __ATOMIC_RELAXED) : last;
    const int32_t block_before = before & ~BY_ATOMIC;
    if (before <= 0 || block_before == me || (atomic && before & BY_ATOMIC)) continue;
    if (Finding* f = report(write ? Kind::written_twice : Kind::reads_other, pc, operand)) {
      const uint64_t block = static_cast<uint64_t>(block_before) - 1;
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

bool is_known(const char* address) {
  return static_cast<size_t>(address - current->stack) < STACK_BYTES ||
         (address >= image_low && address < image_high) ||
         (address >= params_low && address < params_high) || is_lent(address) ||
         static_cast<size_t>(address - reinterpret_cast<char*>(threads)) < sizeof(Threads);
}

bool is_guard(const char* address) {
  for (int i = 0; i < request.guard_count; ++i)
    if (address - shared_low == request.guards[i]) return true;
  return false;
}

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

int64_t elements_of_c() {
  const Operand& c = operands[C_OPERAND];
  return c.batches * c.rows * c.cols;
}

}  // namespace observe

void note_atomic(void* pointer, int bytes, const void* caller) {
  using namespace observe;
  if (!current) return;
  ++worker->counters.atomics;
  char* address = static_cast<char*>(pointer);
  const uint64_t pc = relative_pc(caller);
  if (in_shared(address)) {
    if (!shared_exists(address, bytes, true, pc) || !request.check) return;
    if (reinterpret_cast<uintptr_t>(address) % bytes) misaligned(pc, -1, address, bytes, true);
    check_shared(*current, address, bytes, true, pc, true);
    return;
  }
  const int operand = operand_at(address);
  if (operand < 0) {
    if (!is_known(address)) wild(address, bytes, true, pc);
    return;
  }
  if (!request.check) return;
  if (reinterpret_cast<uintptr_t>(address) % bytes) misaligned(pc, operand, address, bytes, true);
  check_global(operand, address, bytes, true, pc, true);
}

}  // namespace tcgemm::simulator
