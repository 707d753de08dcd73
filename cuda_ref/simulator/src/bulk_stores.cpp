// Bulk copies from shared memory, of boxes of a tensor or of bytes. They read it when their issuer
// waits for that, and write when it waits for all of them: each as late as is allowed, and at the
// latest when it returns.
#include "hopper_internal.hpp"

namespace tcgemm::simulator {

namespace {

struct Store {
  CUtensorMap map;
  uint32_t shared;
  int inner, outer, batch;
  uint64_t pc;
  char* to = nullptr;  // of one that has no map,
  uint32_t bytes = 0;  // and as many of it
};
struct Row {
  char* to;
  std::vector<char> bytes;
  uint64_t pc;
};
struct Stores {
  std::vector<Row> read;  // and not written yet
  std::vector<Store> issued;
  std::vector<size_t> groups;  // stores in each committed group, oldest first
  size_t uncommitted = 0;
};
PerBlock<std::vector<Stores>> bulk_stores;  // by thread

void read_bytes(const Store& s, std::vector<Row>& rows) {
  char* const from = static_cast<char*>(shared_pointer(s.shared));
  if constexpr (OBSERVE)
    for (uint32_t at = 0; at < s.bytes; at += 16) observe::async_read_ends(from + at, 16, s.pc);
  rows.push_back({s.to, {from, from + s.bytes}, s.pc});
}

void read(const Store& s, std::vector<Row>& rows) {
  if (s.to != nullptr) return read_bytes(s, rows);
  const CUtensorMap& map = s.map;
  const uint32_t unit = 16 / map.item_bytes;
  for (uint32_t row = 0; row < map.box_outer; ++row) {
    Row read{nullptr, {}, s.pc};
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
      if (!read.to) read.to = to;
      read.bytes.insert(read.bytes.end(), from, from + 16);
    }
    if (read.to) rows.push_back(std::move(read));
  }
}

void write(std::vector<Row>& rows) {
  for (const Row& row : rows) {
    std::memcpy(row.to, row.bytes.data(), row.bytes.size());
    if constexpr (OBSERVE)
      observe::bulk_global(row.to, static_cast<int64_t>(row.bytes.size()), true, row.pc);
  }
  rows.clear();
}

}  // namespace

void stores_start_block() {
  bulk_stores.now().assign(static_cast<size_t>(thread_count), {});
}

void stores_end_thread(const Thread& thread) {
  Stores& queue = bulk_stores.now()[static_cast<size_t>(thread.linear)];
  for (const Store& s : queue.issued) read(s, queue.read);
  write(queue.read);
  queue = {};
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
  Stores& queue = bulk_stores.now()[static_cast<size_t>(current->linear)];
  queue.issued.push_back({*map, shared, inner, outer, batch, pc});
  ++queue.uncommitted;
}

__attribute__((noinline)) void bulk_store_bytes(void* to, uint32_t shared, uint32_t bytes,
                                                Site site) {
  const uint64_t pc = CALLER;
  if constexpr (OBSERVE) {
    if (request.check && (reinterpret_cast<uint64_t>(to) | shared | bytes) % 16)
      report_misuse(Misuse::bulk_copy, pc, site, shared, static_cast<int32_t>(bytes));
    observe::passes(current->warp, observe::Phase::bulk_store, 1, site.line);
    for (uint32_t at = 0; at < bytes; at += 16)
      observe::async_read_begins(static_cast<char*>(shared_pointer(shared + at)), 16, site, pc);
  }
  Stores& queue = bulk_stores.now()[static_cast<size_t>(current->linear)];
  queue.issued.push_back({{}, shared, 0, 0, 0, pc, static_cast<char*>(to), bytes});
  ++queue.uncommitted;
}

void fence_proxy_async() {
  if constexpr (OBSERVE) observe::fence_proxy();
}

void bulk_commit() {
  Stores& queue = bulk_stores.now()[static_cast<size_t>(current->linear)];
  queue.groups.push_back(queue.uncommitted);
  queue.uncommitted = 0;
}

void bulk_wait_read(int pending) {
  Stores& queue = bulk_stores.now()[static_cast<size_t>(current->linear)];
  while (queue.groups.size() > static_cast<size_t>(pending)) {
    for (size_t i = 0; i < queue.groups.front(); ++i) read(queue.issued[i], queue.read);
    queue.issued.erase(queue.issued.begin(),
                       queue.issued.begin() + static_cast<ptrdiff_t>(queue.groups.front()));
    queue.groups.erase(queue.groups.begin());
  }
}

bool has_unfinished_stores() {
  const Stores& queue = bulk_stores.now()[static_cast<size_t>(current->linear)];
  return !queue.issued.empty() || !queue.read.empty();
}

void bulk_wait_all() {
  bulk_wait_read(0);
  write(bulk_stores.now()[static_cast<size_t>(current->linear)].read);
}

}  // namespace tcgemm::simulator
