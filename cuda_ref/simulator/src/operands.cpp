// The operands and what a launch borrows, in mappings of their own that the workers share.
#include <sys/mman.h>

#include "engine.hpp"

namespace tcgemm::simulator {

namespace {

constexpr size_t GUARD = 1 << 16;

std::vector<std::pair<char*, char*>> loans;

}  // namespace

bool is_lent(const char* address) {
  for (const auto& [begin, end] : loans)
    if (address >= begin && address < end) return true;
  return false;
}

void copy_elements(const Operand& o, char* to, const char* from) {
  for (int64_t z = 0; z < o.batches; ++z) {
    for (int64_t i = 0; i < o.big_count; ++i) {
      const int64_t start = (z * o.batch_stride + i * o.big_stride) * o.item;
      if (o.small_stride == 1 || o.small_count == 1) {
        std::memcpy(to + start, from + start, static_cast<size_t>(o.small_count * o.item));
        continue;
      }
      for (int64_t j = 0; j < o.small_count; ++j) {
        const int64_t at = start + j * o.small_stride * o.item;
        std::memcpy(to + at, from + at, static_cast<size_t>(o.item));
      }
    }
  }
}

void describe_operand(Operand& o, const OperandRequest& from) {
  const int64_t matrix_last =
      (from.rows - 1) * from.row_stride + (from.cols - 1) * from.col_stride;
  const int64_t last = matrix_last + (from.batches - 1) * from.batch_stride;
  o.bytes = static_cast<size_t>((last + 1) * from.item_bytes);
  o.map_bytes = (o.bytes + 2 * GUARD + 8191) & ~size_t(4095);
  o.rows = from.rows;
  o.cols = from.cols;
  o.row_stride = from.row_stride;
  o.col_stride = from.col_stride;
  o.batch_stride = from.batches > 1 ? from.batch_stride : 0;
  o.batches = o.batch_stride ? from.batches : 1;
  o.item = from.item_bytes;

  const int64_t rs = from.rows > 1 ? from.row_stride : 0, cs = from.cols > 1 ? from.col_stride : 0;
  o.big_is_row = rs >= cs;
  o.big_stride = o.big_is_row ? rs : cs;
  o.small_stride = o.big_is_row ? cs : rs;
  o.big_count = o.big_stride == 0 ? 1 : o.big_is_row ? o.rows : o.cols;
  o.small_count = o.small_stride == 0 ? 1 : o.big_is_row ? o.cols : o.rows;
  o.decodable = (o.big_stride == 0 || o.big_stride > (o.small_count - 1) * o.small_stride) &&
                (o.batches == 1 || o.batch_stride > matrix_last);
}

void place_operand(Operand& o, const OperandRequest& from, char* map) {
  o.map = map;
  o.data = map + GUARD + reinterpret_cast<uintptr_t>(from.data) % 256;
}

void fill_operand(const Operand& o, const OperandRequest& from) {
  if (o.bytes <= 16 * static_cast<size_t>(o.batches * o.rows * o.cols * o.item) + 4096) {
    std::memset(o.map, 0xff, o.map_bytes);
  } else {
    std::memset(o.map, 0xff, static_cast<size_t>(o.data - o.map));
    std::memset(o.data + o.bytes, 0xff, GUARD);
  }
  copy_elements(o, o.data, static_cast<const char*>(from.data));
}

bool is_result(int operand) {
  return operand == C_OPERAND || (operand == BIAS_OPERAND && request.writes_bias) ||
         (operand == C_IN_OPERAND && request.writes_c_in);
}

bool c_in_is_c() {
  const void* c_in = request.operands[C_IN_OPERAND].data;
  return c_in && c_in == request.operands[C_OPERAND].data;
}

void* lend(size_t bytes, void*) {
  void* map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return nullptr;
  loans.push_back({static_cast<char*>(map), static_cast<char*>(map) + bytes});
  return std::memset(map, 0xff, bytes);
}

}  // namespace tcgemm::simulator
