// Hopper's instructions, one wrapper each, named after the instruction.
//
// Shared-memory addresses are 32-bit shared::cta addresses in bytes (shared_address); barriers are
// 8-byte mbarrier objects. The wrappers order nothing beyond what their instruction orders: the
// hazards are noted where a caller must add a fence or a barrier.
#pragma once

#include "host/gemm.cuh"

#include <cstdint>

#ifndef TCGEMM_SIMULATOR  // which has these names in hopper.hpp

#include <cuda.h>  // CUtensorMap: types only, nothing to link against

namespace tcgemm::sm90 {

constexpr int MAX_CLUSTER = 8;  // blocks

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// mbarrier: a phase completes when `count` arrivals and all announced bytes have come in. Waiting
// on parity p returns once the phase of that parity is over: 0 for the first, then 1, then 0, ...
// On a fresh barrier a wait on parity 1 returns at once, which is how a producer starts.

__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// Makes the initialised barriers visible to the copy engine and to the other CTAs of the cluster;
// a __syncthreads or cluster barrier must follow.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives on the barrier at the same offset in CTA `cta` of the cluster. It orders no ordinary
// memory access between the CTAs: .release.cluster would, at the price of a MEMBAR.GPU per arrival.
// What a stage's barriers order is wgmma reads that have been waited for, and TMA writes.
__device__ __forceinline__ void mbarrier_arrive_cluster(uint32_t barrier, uint32_t cta) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(barrier), "r"(cta)
      : "memory");
}

__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void mbarrier_try_wait_parity(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier), "r"(parity)
      : "memory");
}

// The bulk tensor copy (TMA). Coordinates are in elements, innermost first. What lies outside the
// tensor arrives as zeros and still counts towards the barrier's bytes; stores are clipped.

__device__ __forceinline__ void prefetch_tensormap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ __forceinline__ void cp_async_bulk_tensor_2d(uint32_t shared, const CUtensorMap* map,
                                                        uint32_t barrier, int inner, int outer) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4}], [%2];" ::"r"(shared), "l"(map), "r"(barrier), "r"(inner), "r"(outer)
      : "memory");
}

// The same for what is read once: it is the first to leave the L2.
__device__ __forceinline__ void cp_async_bulk_tensor_2d_evict_first(uint32_t shared,
                                                                    const CUtensorMap* map,
                                                                    uint32_t barrier, int inner,
                                                                    int outer) {
  constexpr uint64_t EVICT_FIRST = 0x12F0000000000000;  // as createpolicy makes it
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared), "l"(map), "r"(barrier),
      "r"(inner), "r"(outer), "l"(EVICT_FIRST)
      : "memory");
}

// The same box to the same offset, and the same barrier's offset, in every CTA of `ctas` (bits).
__device__ __forceinline__ void cp_async_bulk_tensor_2d_multicast(uint32_t shared,
                                                                  const CUtensorMap* map,
                                                                  uint32_t barrier, int inner,
                                                                  int outer, uint16_t ctas) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared), "l"(map), "r"(barrier),
      "r"(inner), "r"(outer), "h"(ctas)
      : "memory");
}

// Copies bytes, a multiple of 16, to block `cta` of the cluster, and counts them in at its barrier.
// `to` and `barrier` are offsets as they would be here. Hazard: what this block has written comes
// along only after fence_proxy_async by the writers and a barrier.
__device__ __forceinline__ void cp_async_bulk_cluster(uint32_t to, uint32_t from, uint32_t bytes,
                                                      uint32_t barrier, uint32_t cta) {
  asm volatile(
      "{\n"
      ".reg .b32 there, counter;\n"
      "mapa.shared::cluster.u32 there, %0, %4;\n"
      "mapa.shared::cluster.u32 counter, %3, %4;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
      " [there], [%1], %2, [counter];\n"
      "}\n" ::"r"(to), "r"(from), "r"(bytes), "r"(barrier), "r"(cta)
      : "memory");
}

// Asks for a box of the tensor to be brought into the L2. It reads nothing that the program sees,
// so it may stand before griddepcontrol_wait.
__device__ __forceinline__ void cp_async_bulk_prefetch_tensor_2d(const CUtensorMap* map, int inner,
                                                                 int outer) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(map), "r"(inner),
               "r"(outer)
               : "memory");
}

// Asks for a line to be brought into the L2. It may stand before griddepcontrol_wait, as the
// program sees nothing of it.
__device__ __forceinline__ void prefetch_global_l2(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

// cp_async_bulk_tensor_2d with a third coordinate: the matrix of a batch.
__device__ __forceinline__ void cp_async_bulk_tensor_3d(uint32_t shared, const CUtensorMap* map,
                                                        uint32_t barrier, int inner, int outer,
                                                        int batch) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared), "l"(map), "r"(barrier), "r"(inner),
      "r"(outer), "r"(batch)
      : "memory");
}

__device__ __forceinline__ void cp_async_bulk_tensor_3d_multicast(uint32_t shared,
                                                                  const CUtensorMap* map,
                                                                  uint32_t barrier, int inner,
                                                                  int outer, int batch,
                                                                  uint16_t ctas) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared), "l"(map),
      "r"(barrier), "r"(inner), "r"(outer), "r"(batch), "h"(ctas)
      : "memory");
}

// Hazard: ordinary writes to `shared` are visible to the store only after every writing thread has
// run fence_proxy_async and a barrier has followed. Hazard: the clipping is to 16-byte units, so an
// inner extent that is not a multiple of 16 bytes lets up to 14 bytes past each row be written.
__device__ __forceinline__ void tma_store_2d(const CUtensorMap* map, uint32_t shared, int inner,
                                             int outer) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(
                   map),
               "r"(shared), "r"(inner), "r"(outer)
               : "memory");
}

__device__ __forceinline__ void tma_store_3d(const CUtensorMap* map, uint32_t shared, int inner,
                                             int outer, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
      "r"(shared), "r"(inner), "r"(outer), "r"(batch)
      : "memory");
}

__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void cp_async_bulk_commit_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until at most PENDING of this thread's stores still read shared memory.
template <int PENDING>
__device__ __forceinline__ void cp_async_bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// Moves registers between warpgroups: every warp of the warpgroup runs it, REGISTERS a multiple
// of 8. ptxas honours it only in a kernel with __launch_bounds__(threads, 1).
template <int REGISTERS>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// A barrier of `threads` threads. Barrier 0 is __syncthreads.
__device__ __forceinline__ void bar_sync(uint32_t barrier, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Four 8 x 8 matrices of 16-bit elements. Lanes 8 i .. 8 i + 7 give the addresses of the 16-byte
// rows of matrix i; lane l holds elements 2 (l % 4) and the next of row l / 4 of each matrix.
__device__ __forceinline__ void stmatrix_x4(uint32_t shared, uint32_t m0, uint32_t m1, uint32_t m2,
                                            uint32_t m3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared),
               "r"(m0), "r"(m1), "r"(m2), "r"(m3)
               : "memory");
}

// The same, each matrix transposed: the 16-byte row r of matrix i is its column r.
__device__ __forceinline__ void stmatrix_x4_trans(uint32_t shared, uint32_t m0, uint32_t m1,
                                                  uint32_t m2, uint32_t m3) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared),
      "r"(m0), "r"(m1), "r"(m2), "r"(m3)
      : "memory");
}

__device__ __forceinline__ uint32_t cluster_ctarank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ void barrier_cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}

// The same for a barrier that orders no writes: with .release it would wait for this thread's
// stores to global memory, some two microseconds at the end of a kernel.
__device__ __forceinline__ void barrier_cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}

__device__ __forceinline__ void barrier_cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// The grid after this one in the stream may start as soon as every block has said so or is done ...
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// ... and waits here until this one is done and its writes are visible. No global memory before.
__device__ __forceinline__ void griddepcontrol_wait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Of either type, because accumulators of a wgmma that change their type on the way, if only for the
// assembler, are copied, and then the registers do not suffice (ptxas C7511).
__device__ __forceinline__ void st_shared_v2(uint32_t shared, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(shared), "f"(x), "f"(y) : "memory");
}
__device__ __forceinline__ void st_shared(uint32_t shared, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(shared), "f"(x) : "memory");
}
__device__ __forceinline__ void st_shared_v2(uint32_t shared, int32_t x, int32_t y) {
  asm volatile("st.shared.v2.s32 [%0], {%1, %2};" ::"r"(shared), "r"(x), "r"(y) : "memory");
}

__device__ __forceinline__ uint4 ld_shared_v4(uint32_t shared) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(shared)
               : "memory");
  return v;
}

__device__ __forceinline__ uint32_t ld_shared_u32(uint32_t shared) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(shared) : "memory");
  return v;
}

__device__ __forceinline__ void st_shared_v4(uint32_t shared, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

// A float at the same offset in block `cta` of the cluster.
__device__ __forceinline__ float ld_shared_cluster(uint32_t at, uint32_t cta) {
  float x;
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %1, %2;\n"
      "ld.shared::cluster.f32 %0, [there];\n"
      "}\n"
      : "=f"(x)
      : "r"(at), "r"(cta)
      : "memory");
  return x;
}

// What this thread has written, or has seen by a barrier, is seen by whoever acquires the value.
__device__ __forceinline__ void st_release(uint64_t* to, uint64_t value) {
  asm volatile("fence.acq_rel.gpu;\nst.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(value)
               : "memory");
}

__device__ __forceinline__ uint64_t ld_acquire(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}

}  // namespace tcgemm::sm90

#endif  // TCGEMM_SIMULATOR
