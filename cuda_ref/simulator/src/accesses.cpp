// What whole warps and asynchronous copies read and write: each is checked, and counted as the
// hardware's instructions would ask for it.
#include "observe.hpp"

namespace tcgemm::simulator {
namespace observe {

namespace {

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
  if (n && request.count) serve(lanes[0].warp, pointers, n);
}

}  // namespace

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
    mark_in_flight(copy.to, copy.bytes, copy.pc);
  }
  ++worker->counters.async_copies;
  Entry* logged = log(t, copy.to, copy.bytes, true, SHARED, copy.pc);
  if (!logged) return;
  logged->kind = copy.through_l1 ? Entry::copy_through_l1 : Entry::copy;
  if (operand < 0) return;
  logged->from = reinterpret_cast<uint64_t>(from);
  logged->read = static_cast<uint8_t>(copy.source_bytes);
}

void wgmma_read(char* address, int bytes, Site site, uint64_t pc) {
  if (!shared_exists(address, bytes, false, pc) || !request.check) return;
  check_shared(*current, address, bytes, false, pc);
  check_proxy(*current, address, Misuse::wgmma_proxy, site, pc);
}

void shared_write(char* address, int bytes, uint64_t pc) {
  if (!shared_exists(address, bytes, true, pc)) return;
  if (request.check) {
    if (reinterpret_cast<uintptr_t>(address) % 16) misaligned(pc, -1, address, bytes, true);
    check_shared(*current, address, bytes, true, pc);
  }
  log(*current, address, bytes, true, SHARED, pc);
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

}  // namespace observe
}  // namespace tcgemm::simulator
