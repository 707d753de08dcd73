// What gemv.cu asks of the machine beyond sm90.cuh, each wrapper named after its instruction.
#pragma once

#include "sm90.cuh"

#include <type_traits>

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

// D[16, 8] += A[16, 16] B[16, 8], summed in float32. In lane l, with g = l / 4 and t = l % 4: the
// registers of A are (m, k) = (g, 2 t), (g + 8, 2 t), (g, 2 t + 8), (g + 8, 2 t + 8), those of B
// (k, n) = (2 t, g), (2 t + 8, g), each with its neighbour along k; D has columns 2 t and 2 t + 1 of
// rows g and g + 8.
template <typename In>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
  if constexpr (std::is_same_v<In, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
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
