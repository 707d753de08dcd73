// wgmma of the types that must lie K-major: int8, uint8, the 8-bit floats, and float32 as tf32.
//
// D[64, n] += A[64, k] @ B[k, n] with k = 32 bytes: 32 elements of 8 bits, 8 of tf32. Panels,
// descriptors and accumulators are those of wgmma.cuh for K-major operands. Integers are summed in
// int32 modulo 2^32; all else in float32 as the tensor cores keep it, which truncate every partial
// sum, and of the 8-bit floats to fewer bits than float32 has. Of tf32 the lower 13 bits are ignored.
#pragma once

#include "wgmma.cuh"

#ifndef TCGEMM_SIMULATOR  // which has these names in hopper.hpp

namespace tcgemm::sm90 {

enum class Mma { s8, u8, e4m3, e5m2, tf32 };

#define TCGEMM_8(C, d, i)                                                                   \
  C(d[i]), C(d[i + 1]), C(d[i + 2]), C(d[i + 3]), C(d[i + 4]), C(d[i + 5]), C(d[i + 6]), \
      C(d[i + 7])

#define TCGEMM_D64 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, "                                                              \
  " %8, %9, %10, %11, %12, %13, %14, %15, "                                                        \
  " %16, %17, %18, %19, %20, %21, %22, %23, "                                                      \
  " %24, %25, %26, %27, %28, %29, %30, %31, "                                                      \
  " %32, %33, %34, %35, %36, %37, %38, %39, "                                                      \
  " %40, %41, %42, %43, %44, %45, %46, %47, "                                                      \
  " %48, %49, %50, %51, %52, %53, %54, %55, "                                                      \
  " %56, %57, %58, %59, %60, %61, %62, %63}"
#define TCGEMM_D96 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, "                                                              \
  " %8, %9, %10, %11, %12, %13, %14, %15, "                                                        \
  " %16, %17, %18, %19, %20, %21, %22, %23, "                                                      \
  " %24, %25, %26, %27, %28, %29, %30, %31, "                                                      \
  " %32, %33, %34, %35, %36, %37, %38, %39, "                                                      \
  " %40, %41, %42, %43, %44, %45, %46, %47, "                                                      \
  " %48, %49, %50, %51, %52, %53, %54, %55, "                                                      \
  " %56, %57, %58, %59, %60, %61, %62, %63, "                                                      \
  " %64, %65, %66, %67, %68, %69, %70, %71, "                                                      \
  " %72, %73, %74, %75, %76, %77, %78, %79, "                                                      \
  " %80, %81, %82, %83, %84, %85, %86, %87, "                                                      \
  " %88, %89, %90, %91, %92, %93, %94, %95}"
#define TCGEMM_D128 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, "                                                              \
  " %8, %9, %10, %11, %12, %13, %14, %15, "                                                        \
  " %16, %17, %18, %19, %20, %21, %22, %23, "                                                      \
  " %24, %25, %26, %27, %28, %29, %30, %31, "                                                      \
  " %32, %33, %34, %35, %36, %37, %38, %39, "                                                      \
  " %40, %41, %42, %43, %44, %45, %46, %47, "                                                      \
  " %48, %49, %50, %51, %52, %53, %54, %55, "                                                      \
  " %56, %57, %58, %59, %60, %61, %62, %63, "                                                      \
  " %64, %65, %66, %67, %68, %69, %70, %71, "                                                      \
  " %72, %73, %74, %75, %76, %77, %78, %79, "                                                      \
  " %80, %81, %82, %83, %84, %85, %86, %87, "                                                      \
  " %88, %89, %90, %91, %92, %93, %94, %95, "                                                      \
  " %96, %97, %98, %99, %100, %101, %102, %103, "                                                  \
  " %104, %105, %106, %107, %108, %109, %110, %111, "                                              \
  " %112, %113, %114, %115, %116, %117, %118, %119, "                                              \
  " %120, %121, %122, %123, %124, %125, %126, %127}"

// D, A, B, P: where the operands stand in the list; SCALES: the signs, which integers have not.
#define TCGEMM_WGMMA(SHAPE, D, A, B, P, SCALES, ...)               \
  asm volatile(                                                    \
      "{\n"                                                        \
      ".reg .pred p;\n"                                            \
      "setp.ne.b32 p, " P ", 0;\n"                                 \
      "wgmma.mma_async.sync.aligned." SHAPE " " D ", " A ", " B    \
      ", p" SCALES ";\n"                                           \
      "}\n"                                                        \
      : __VA_ARGS__                                                \
      : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)))

#define TCGEMM_WGMMA_N128(TYPES, C, SCALES) \
  TCGEMM_WGMMA("m64n128" TYPES, TCGEMM_D64, "%64", "%65", "%66", SCALES, \
               TCGEMM_8(C, d, 0), TCGEMM_8(C, d, 8), TCGEMM_8(C, d, 16), \
               TCGEMM_8(C, d, 24), TCGEMM_8(C, d, 32), TCGEMM_8(C, d, 40), \
               TCGEMM_8(C, d, 48), TCGEMM_8(C, d, 56))
#define TCGEMM_WGMMA_N192(TYPES, C, SCALES) \
  TCGEMM_WGMMA("m64n192" TYPES, TCGEMM_D96, "%96", "%97", "%98", SCALES, \
               TCGEMM_8(C, d, 0), TCGEMM_8(C, d, 8), TCGEMM_8(C, d, 16), \
               TCGEMM_8(C, d, 24), TCGEMM_8(C, d, 32), TCGEMM_8(C, d, 40), \
               TCGEMM_8(C, d, 48), TCGEMM_8(C, d, 56), TCGEMM_8(C, d, 64), \
               TCGEMM_8(C, d, 72), TCGEMM_8(C, d, 80), TCGEMM_8(C, d, 88))
#define TCGEMM_WGMMA_N256(TYPES, C, SCALES) \
  TCGEMM_WGMMA("m64n256" TYPES, TCGEMM_D128, "%128", "%129", "%130", SCALES, \
               TCGEMM_8(C, d, 0), TCGEMM_8(C, d, 8), TCGEMM_8(C, d, 16), \
               TCGEMM_8(C, d, 24), TCGEMM_8(C, d, 32), TCGEMM_8(C, d, 40), \
               TCGEMM_8(C, d, 48), TCGEMM_8(C, d, 56), TCGEMM_8(C, d, 64), \
               TCGEMM_8(C, d, 72), TCGEMM_8(C, d, 80), TCGEMM_8(C, d, 88), \
               TCGEMM_8(C, d, 96), TCGEMM_8(C, d, 104), TCGEMM_8(C, d, 112), \
               TCGEMM_8(C, d, 120))

#define TCGEMM_FLOAT "+f"
#define TCGEMM_INT "+r"

// With accumulate = false D is overwritten, whatever the registers held.
template <Mma MMA, typename Acc, int REGISTERS>
__device__ __forceinline__ void wgmma_kmajor(Acc (&d)[REGISTERS], uint64_t a, uint64_t b,
                                             bool accumulate) {
  static_assert(REGISTERS == 64 || REGISTERS == 96 || REGISTERS == 128);
  if constexpr (REGISTERS == 64) {
    if constexpr (MMA == Mma::s8)
      TCGEMM_WGMMA_N128("k32.s32.s8.s8", TCGEMM_INT, "");
    else if constexpr (MMA == Mma::u8)
      TCGEMM_WGMMA_N128("k32.s32.u8.u8", TCGEMM_INT, "");
    else if constexpr (MMA == Mma::e4m3)
      TCGEMM_WGMMA_N128("k32.f32.e4m3.e4m3", TCGEMM_FLOAT, ", 1, 1");
    else if constexpr (MMA == Mma::e5m2)
      TCGEMM_WGMMA_N128("k32.f32.e5m2.e5m2", TCGEMM_FLOAT, ", 1, 1");
    else
      TCGEMM_WGMMA_N128("k8.f32.tf32.tf32", TCGEMM_FLOAT, ", 1, 1");
  } else if constexpr (REGISTERS == 96) {
    if constexpr (MMA == Mma::s8)
      TCGEMM_WGMMA_N192("k32.s32.s8.s8", TCGEMM_INT, "");
    else if constexpr (MMA == Mma::u8)
      TCGEMM_WGMMA_N192("k32.s32.u8.u8", TCGEMM_INT, "");
    else if constexpr (MMA == Mma::e4m3)
      TCGEMM_WGMMA_N192("k32.f32.e4m3.e4m3", TCGEMM_FLOAT, ", 1, 1");
    else if constexpr (MMA == Mma::e5m2)
      TCGEMM_WGMMA_N192("k32.f32.e5m2.e5m2", TCGEMM_FLOAT, ", 1, 1");
    else
      TCGEMM_WGMMA_N192("k8.f32.tf32.tf32", TCGEMM_FLOAT, ", 1, 1");
  } else {
    if constexpr (MMA == Mma::s8)
      TCGEMM_WGMMA_N256("k32.s32.s8.s8", TCGEMM_INT, "");
    else if constexpr (MMA == Mma::u8)
      TCGEMM_WGMMA_N256("k32.s32.u8.u8", TCGEMM_INT, "");
    else if constexpr (MMA == Mma::e4m3)
      TCGEMM_WGMMA_N256("k32.f32.e4m3.e4m3", TCGEMM_FLOAT, ", 1, 1");
    else if constexpr (MMA == Mma::e5m2)
      TCGEMM_WGMMA_N256("k32.f32.e5m2.e5m2", TCGEMM_FLOAT, ", 1, 1");
    else
      TCGEMM_WGMMA_N256("k8.f32.tf32.tf32", TCGEMM_FLOAT, ", 1, 1");
  }
}

#undef TCGEMM_WGMMA_N128
#undef TCGEMM_WGMMA_N192
#undef TCGEMM_WGMMA_N256
#undef TCGEMM_WGMMA
#undef TCGEMM_D64
#undef TCGEMM_D96
#undef TCGEMM_D128
#undef TCGEMM_8
#undef TCGEMM_FLOAT
#undef TCGEMM_INT

}  // namespace tcgemm::sm90

#endif  // TCGEMM_SIMULATOR
