// What gemv.cu asks of the machine beyond sm90.cuh, each wrapper named after its instruction.
#pragma once

#include "sm90.cuh"

#ifndef TCGEMM_SIMULATOR  // which has these names in hopper.hpp

namespace tcgemm::sm90 {

// Sixteen bytes that are read once: past the L1, and the first to leave the L2, which is told to
// fetch AROUND bytes, 64 or 256: those of a row that the next loads will ask for.
template <int AROUND>
__device__ __forceinline__ uint4 ld_global_evict_first(const void* from) {
  constexpr uint64_t EVICT_FIRST = 0x12F0000000000000;  // as createpolicy makes it
  uint4 v;
  if constexpr (AROUND == 256) {
    asm volatile(
        "ld.global.nc.L1::no_allocate.L2::cache_hint.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(from), "l"(EVICT_FIRST));
  } else {
    asm volatile(
        "ld.global.nc.L1::no_allocate.L2::cache_hint.L2::64B.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(from), "l"(EVICT_FIRST));
  }
  return v;
}

// Asks for a line to be brought into the L2. It may stand before griddepcontrol_wait, as the program
// sees nothing of it.
__device__ __forceinline__ void prefetch_global_l2(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
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

}  // namespace tcgemm::sm90

#endif
