// Flags between GPUs: loads and stores at system scope, one wrapper each, and their counterparts on a
// CPU, where peers are processes that share memory.
#pragma once

#include <cstdint>

#include "host/gemm.cuh"

#ifdef TCGEMM_SIMULATOR
#include <sched.h>
#include <time.h>

#include <cstdlib>

namespace tcgemm::simulator {
bool has_unfinished_stores();  // by TMA, of this thread
}
#endif

namespace tcgemm::sm90 {

#ifndef TCGEMM_SIMULATOR

// What the setter of the value has released is seen by this thread's later accesses, but for those
// through the async proxy (TMA): fence_proxy_async_global.
__device__ __forceinline__ int32_t ld_acquire_sys(const int32_t* from) {
  int32_t value;
  asm volatile("ld.acquire.sys.global.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

// What this thread has written, or has seen by a barrier, is seen by whoever acquires the value.
__device__ __forceinline__ void st_release_sys(int32_t* to, int32_t value) {
  asm volatile("fence.acq_rel.sys;\nst.relaxed.sys.global.s32 [%0], %1;" ::"l"(to), "r"(value)
               : "memory");
}

// Counts one more, and tells how many there were. Who counts sees what those before had read and
// written, on this GPU.
__device__ __forceinline__ int32_t atom_inc_acq_rel_gpu(int32_t* count) {
  int32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(count) : "memory");
  return before;
}

// Stores bytes, a multiple of 16, by TMA as they lie in shared memory: both addresses are multiples
// of 16. Hazard: what threads have written there comes along only after fence_proxy_async by each
// of them and a barrier.
__device__ __forceinline__ void cp_async_bulk_global(void* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}

// 16 bytes that another GPU may have stored, once its flag was seen.
__device__ __forceinline__ uint4 ld_global_v4(const uint4* from) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// Waits until all of this thread's committed TMA stores have arrived: it may tell others of them.
__device__ __forceinline__ void cp_async_bulk_wait_all() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Orders this thread's accesses to global memory before its later TMA loads.
__device__ __forceinline__ void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// Ends the launch with an error.
__device__ __forceinline__ void trap() { asm volatile("trap;"); }

// The GPU's clock, in nanoseconds.
__device__ __forceinline__ int64_t globaltimer() {
  int64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)::"memory");
  return now;
}

#else

inline int32_t ld_acquire_sys(const int32_t* from, TCGEMM_HERE) {
  sched_yield();  // who is to set the flag may need this core,
  simulator::let_others_run(site);  // or wait for what other threads of this block send
  return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}
inline void st_release_sys(int32_t* to, int32_t value) {
  if (simulator::has_unfinished_stores()) std::abort();  // the value would come before them
  __atomic_store_n(to, value, __ATOMIC_RELEASE);
}
inline int32_t atom_inc_acq_rel_gpu(int32_t* count) {
  return __atomic_fetch_add(count, 1, __ATOMIC_ACQ_REL);
}
inline uint4 ld_global_v4(const uint4* from) { return *from; }
inline void fence_proxy_async_global() {}
inline void trap() { std::abort(); }
inline int64_t globaltimer() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1000000000} + now.tv_nsec;
}

#endif

}  // namespace tcgemm::sm90
