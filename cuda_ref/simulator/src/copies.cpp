// cp.async: a copy lands at its thread's wait and not before.
#include <algorithm>

#include "engine.hpp"

namespace tcgemm::simulator {

void land(Thread& t, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const Copy& copy = t.copies[i];
    std::memcpy(copy.to, copy.from, copy.source_bytes);
    std::memset(copy.to + copy.source_bytes, 0, copy.bytes - copy.source_bytes);
    if constexpr (OBSERVE) observe::async_lands(copy);
  }
  t.copies.erase(t.copies.begin(), t.copies.begin() + static_cast<ptrdiff_t>(count));
}

__attribute__((noinline)) void copy_async(void* shared, const void* global, int bytes,
                                          int source_bytes, bool through_l1, Site site) {
  Thread& t = *current;
  if (OBSERVE && request.check && bytes != 4 && bytes != 8 && bytes != 16) {
    report_misuse(Misuse::copy_size, CALLER, site, bytes);
    abandon_block();
  }
  // Of an address that is read observe::async_issued says it.
  const auto off = static_cast<int64_t>(reinterpret_cast<uintptr_t>(global) % bytes);
  if (OBSERVE && request.check && source_bytes <= 0 && off != 0)
    report_misuse(Misuse::copy_source, CALLER, site, off, bytes);
  const Copy copy{static_cast<char*>(shared), static_cast<const char*>(global), bytes,
                  std::max(0, std::min(source_bytes, bytes)), through_l1, CALLER};
  if constexpr (OBSERVE) observe::async_issued(copy);
  t.copies.push_back(copy);
  ++t.uncommitted;
}
void copy_async_commit() {
  if constexpr (OBSERVE) observe::marks_copies(-1);
  current->groups.push_back(current->uncommitted);
  current->uncommitted = 0;
}
void copy_async_wait(int pending) {
  if constexpr (OBSERVE) observe::marks_copies(pending);
  Thread& t = *current;
  size_t copies = 0, groups = 0;
  while (t.groups.size() - groups > static_cast<size_t>(pending)) copies += t.groups[groups++];
  t.groups.erase(t.groups.begin(), t.groups.begin() + static_cast<ptrdiff_t>(groups));
  land(t, copies);
}
void copy_async_wait_all() {
  copy_async_commit();
  copy_async_wait(0);
}

}  // namespace tcgemm::simulator
