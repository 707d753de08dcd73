// Every load and store of the kernel: g++ calls a hook with its address, as for the thread sanitizer.
#include "observe.hpp"

namespace tcgemm::simulator {
namespace observe {

static void access(void* pointer, int bytes, bool write, int alignment, uint64_t pc) {
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
  if (!is_known(address)) wild(address, bytes, write, pc);
}

}  // namespace observe
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
static void access_range(const void* p, size_t bytes, bool write, uint64_t pc) {
  char* first = static_cast<char*>(const_cast<void*>(p));
  for (size_t i = 0; i < bytes; i += 16)
    tcgemm::simulator::observe::access(first + i, static_cast<int>(std::min<size_t>(16, bytes - i)),
                                       write, 1, pc);
}
HOOK __tsan_read_range(void* p, size_t bytes) { access_range(p, bytes, false, CALLER); }
HOOK __tsan_write_range(void* p, size_t bytes) { access_range(p, bytes, true, CALLER); }
// What a kernel calls in place of memcpy, memmove and memset (../build.py).
extern "C" __attribute__((visibility("hidden"), noinline)) void* tcgemm_memmove(
    void* to, const void* from, size_t bytes) {
  access_range(from, bytes, false, CALLER);
  access_range(to, bytes, true, CALLER);
  return std::memmove(to, from, bytes);
}
extern "C" __attribute__((visibility("hidden"), noinline)) void* tcgemm_memcpy(
    void* to, const void* from, size_t bytes) {
  access_range(from, bytes, false, CALLER);
  access_range(to, bytes, true, CALLER);
  return std::memcpy(to, from, bytes);
}
extern "C" __attribute__((visibility("hidden"), noinline)) void* tcgemm_memset(
    void* to, int value, size_t bytes) {
  access_range(to, bytes, true, CALLER);
  return std::memset(to, value, bytes);
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
