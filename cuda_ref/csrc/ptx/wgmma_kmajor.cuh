// wgmma of the types that must lie K-major: int8, uint8, the 8-bit floats, and float32 as tf32.
//
// D[64, n] += A[64, k] @ B[k, n] with k = 32 bytes: 32 elements of 8 bits, 8 of tf32. Panels,
// descriptors and accumulators are those of wgmma.cuh for K-major operands. Integers are summed in
// int32 modulo 2^32; all else in float32 as the tensor cores keep it, which truncate every partial
// sum, and of the 8-bit floats to fewer bits than float32 has. Of tf32 the lower 13 bits are ignored.
#pragma once

#include "ptx/wgmma.cuh"

#ifndef TCGEMM_SIMULATOR  // which has these names in hopper.hpp

namespace tcgemm::sm90 {

enum class Mma { s8, u8, e4m3, e5m2, tf32 };

// The instruction of each type, for n = 2 COUNT columns.
#define TCGEMM_WGMMA_KMAJOR(COUNT, SHAPE, A, B, P)                                              \
  if constexpr (MMA == Mma::s8)                                                                \
    TCGEMM_WGMMA(COUNT, SHAPE "k32.s32.s8.s8", "+r", A, B, P, "", TCGEMM_DESCRIPTORS);          \
  else if constexpr (MMA == Mma::u8)                                                            \
    TCGEMM_WGMMA(COUNT, SHAPE "k32.s32.u8.u8", "+r", A, B, P, "", TCGEMM_DESCRIPTORS);          \
  else if constexpr (MMA == Mma::e4m3)                                                          \
    TCGEMM_WGMMA(COUNT, SHAPE "k32.f32.e4m3.e4m3", "+f", A, B, P, ", 1, 1", TCGEMM_DESCRIPTORS); \
  else if constexpr (MMA == Mma::e5m2)                                                          \
    TCGEMM_WGMMA(COUNT, SHAPE "k32.f32.e5m2.e5m2", "+f", A, B, P, ", 1, 1", TCGEMM_DESCRIPTORS); \
  else                                                                                          \
    TCGEMM_WGMMA(COUNT, SHAPE "k8.f32.tf32.tf32", "+f", A, B, P, ", 1, 1", TCGEMM_DESCRIPTORS)

// With accumulate = false D is overwritten, whatever the registers held.
template <Mma MMA, typename Acc, int REGISTERS>
__device__ __forceinline__ void wgmma_kmajor(Acc (&d)[REGISTERS], uint64_t a, uint64_t b,
                                             bool accumulate) {
  static_assert(REGISTERS == 64 || REGISTERS == 96 || REGISTERS == 128);
  if constexpr (REGISTERS == 64) {
    TCGEMM_WGMMA_KMAJOR(64, "m64n128", "%64", "%65", "%66");
  } else if constexpr (REGISTERS == 96) {
    TCGEMM_WGMMA_KMAJOR(96, "m64n192", "%96", "%97", "%98");
  } else {
    TCGEMM_WGMMA_KMAJOR(128, "m64n256", "%128", "%129", "%130");
  }
}

#undef TCGEMM_WGMMA_KMAJOR

// D[64, n] += A[64, 8] @ B[8, n] of tf32, with A in registers: thread t of 128 holds of rows
// 16 (t / 32) + t % 32 / 4 (a[0], a[2]) and 8 below it (a[1], a[3]) the columns t % 4 (a[0], a[1])
// and t % 4 + 4. Hazard: they must stay as they are until the group has been waited for.
#define TCGEMM_WGMMA_REGISTERS(COUNT, SHAPE, A, B, P)                                     \
  TCGEMM_WGMMA(COUNT, SHAPE "k8.f32.tf32.tf32", "+f", A, B, P, ", 1, 1", "r"(a[0]),       \
               "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int32_t>(accumulate)))

template <int REGISTERS>
__device__ __forceinline__ void wgmma_tf32_registers(float (&d)[REGISTERS], const uint32_t* a,
                                                     uint64_t b, bool accumulate) {
  static_assert(REGISTERS == 64 || REGISTERS == 128);
  if constexpr (REGISTERS == 64)
    TCGEMM_WGMMA_REGISTERS(64, "m64n128", "{%64, %65, %66, %67}", "%68", "%69");
  else
    TCGEMM_WGMMA_REGISTERS(128, "m64n256", "{%128, %129, %130, %131}", "%132", "%133");
}

#undef TCGEMM_WGMMA_REGISTERS

}  // namespace tcgemm::sm90

#endif  // TCGEMM_SIMULATOR
