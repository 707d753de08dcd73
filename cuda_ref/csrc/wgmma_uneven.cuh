// wgmma with an n that is no power of two, for tiles that fit a matrix better: D[64, n] +=
// A[64, 16] @ B[16, n]. Operands, descriptors and accumulators are as in wgmma.cuh, with n / 2
// accumulators a thread.
#pragma once

#include "wgmma.cuh"

#ifndef TCGEMM_SIMULATOR  // which has these names in hopper.hpp

namespace tcgemm::sm90 {

#define TCGEMM_ACCUMULATORS_8(d, i)                                                           \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])

#define TCGEMM_WGMMA_M64N144K16(TYPE)                                                        \
  asm volatile(                                                                              \
      "{\n"                                                                                  \
      ".reg .pred p;\n"                                                                      \
      "setp.ne.b32 p, %74, 0;\n"                                                             \
      "wgmma.mma_async.sync.aligned.m64n144k16.f32." TYPE "." TYPE " "                       \
      "{%0, %1, %2, %3, %4, %5, %6, %7, "                                                    \
      " %8, %9, %10, %11, %12, %13, %14, %15, "                                              \
      " %16, %17, %18, %19, %20, %21, %22, %23, "                                            \
      " %24, %25, %26, %27, %28, %29, %30, %31, "                                            \
      " %32, %33, %34, %35, %36, %37, %38, %39, "                                            \
      " %40, %41, %42, %43, %44, %45, %46, %47, "                                            \
      " %48, %49, %50, %51, %52, %53, %54, %55, "                                            \
      " %56, %57, %58, %59, %60, %61, %62, %63, "                                            \
      " %64, %65, %66, %67, %68, %69, %70, %71}, "                                           \
      "%72, %73, p, 1, 1, %75, %76;\n"                                                       \
      "}\n"                                                                                  \
      : TCGEMM_ACCUMULATORS_8(d, 0), TCGEMM_ACCUMULATORS_8(d, 8), TCGEMM_ACCUMULATORS_8(d, 16),\
        TCGEMM_ACCUMULATORS_8(d, 24), TCGEMM_ACCUMULATORS_8(d, 32), TCGEMM_ACCUMULATORS_8(d, 40),\
        TCGEMM_ACCUMULATORS_8(d, 48), TCGEMM_ACCUMULATORS_8(d, 56), TCGEMM_ACCUMULATORS_8(d, 64)\
      : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)), "n"(TRANS_A), "n"(TRANS_B))

#define TCGEMM_WGMMA_M64N176K16(TYPE)                                                        \
  asm volatile(                                                                              \
      "{\n"                                                                                  \
      ".reg .pred p;\n"                                                                      \
      "setp.ne.b32 p, %90, 0;\n"                                                             \
      "wgmma.mma_async.sync.aligned.m64n176k16.f32." TYPE "." TYPE " "                       \
      "{%0, %1, %2, %3, %4, %5, %6, %7, "                                                    \
      " %8, %9, %10, %11, %12, %13, %14, %15, "                                              \
      " %16, %17, %18, %19, %20, %21, %22, %23, "                                            \
      " %24, %25, %26, %27, %28, %29, %30, %31, "                                            \
      " %32, %33, %34, %35, %36, %37, %38, %39, "                                            \
      " %40, %41, %42, %43, %44, %45, %46, %47, "                                            \
      " %48, %49, %50, %51, %52, %53, %54, %55, "                                            \
      " %56, %57, %58, %59, %60, %61, %62, %63, "                                            \
      " %64, %65, %66, %67, %68, %69, %70, %71, "                                            \
      " %72, %73, %74, %75, %76, %77, %78, %79, "                                            \
      " %80, %81, %82, %83, %84, %85, %86, %87}, "                                           \
      "%88, %89, p, 1, 1, %91, %92;\n"                                                       \
      "}\n"                                                                                  \
      : TCGEMM_ACCUMULATORS_8(d, 0), TCGEMM_ACCUMULATORS_8(d, 8), TCGEMM_ACCUMULATORS_8(d, 16),\
        TCGEMM_ACCUMULATORS_8(d, 24), TCGEMM_ACCUMULATORS_8(d, 32), TCGEMM_ACCUMULATORS_8(d, 40),\
        TCGEMM_ACCUMULATORS_8(d, 48), TCGEMM_ACCUMULATORS_8(d, 56), TCGEMM_ACCUMULATORS_8(d, 64),\
        TCGEMM_ACCUMULATORS_8(d, 72), TCGEMM_ACCUMULATORS_8(d, 80)                           \
      : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)), "n"(TRANS_A), "n"(TRANS_B))

#define TCGEMM_WGMMA_M64N192K16(TYPE)                                                        \
  asm volatile(                                                                              \
      "{\n"                                                                                  \
      ".reg .pred p;\n"                                                                      \
      "setp.ne.b32 p, %98, 0;\n"                                                             \
      "wgmma.mma_async.sync.aligned.m64n192k16.f32." TYPE "." TYPE " "                       \
      "{%0, %1, %2, %3, %4, %5, %6, %7, "                                                    \
      " %8, %9, %10, %11, %12, %13, %14, %15, "                                              \
      " %16, %17, %18, %19, %20, %21, %22, %23, "                                            \
      " %24, %25, %26, %27, %28, %29, %30, %31, "                                            \
      " %32, %33, %34, %35, %36, %37, %38, %39, "                                            \
      " %40, %41, %42, %43, %44, %45, %46, %47, "                                            \
      " %48, %49, %50, %51, %52, %53, %54, %55, "                                            \
      " %56, %57, %58, %59, %60, %61, %62, %63, "                                            \
      " %64, %65, %66, %67, %68, %69, %70, %71, "                                            \
      " %72, %73, %74, %75, %76, %77, %78, %79, "                                            \
      " %80, %81, %82, %83, %84, %85, %86, %87, "                                            \
      " %88, %89, %90, %91, %92, %93, %94, %95}, "                                           \
      "%96, %97, p, 1, 1, %99, %100;\n"                                                      \
      "}\n"                                                                                  \
      : TCGEMM_ACCUMULATORS_8(d, 0), TCGEMM_ACCUMULATORS_8(d, 8), TCGEMM_ACCUMULATORS_8(d, 16),\
        TCGEMM_ACCUMULATORS_8(d, 24), TCGEMM_ACCUMULATORS_8(d, 32), TCGEMM_ACCUMULATORS_8(d, 40),\
        TCGEMM_ACCUMULATORS_8(d, 48), TCGEMM_ACCUMULATORS_8(d, 56), TCGEMM_ACCUMULATORS_8(d, 64),\
        TCGEMM_ACCUMULATORS_8(d, 72), TCGEMM_ACCUMULATORS_8(d, 80), TCGEMM_ACCUMULATORS_8(d, 88)\
      : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)), "n"(TRANS_A), "n"(TRANS_B))

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n144k16(float (&d)[72], uint64_t a, uint64_t b,
                                                 bool accumulate) {
  constexpr int TRANS_A = A == Major::MN, TRANS_B = B == Major::MN;
  if constexpr (std::is_same_v<In, __half>) {
    TCGEMM_WGMMA_M64N144K16("f16");
  } else {
    TCGEMM_WGMMA_M64N144K16("bf16");
  }
}

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n176k16(float (&d)[88], uint64_t a, uint64_t b,
                                                 bool accumulate) {
  constexpr int TRANS_A = A == Major::MN, TRANS_B = B == Major::MN;
  if constexpr (std::is_same_v<In, __half>) {
    TCGEMM_WGMMA_M64N176K16("f16");
  } else {
    TCGEMM_WGMMA_M64N176K16("bf16");
  }
}

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n192k16(float (&d)[96], uint64_t a, uint64_t b,
                                                 bool accumulate) {
  constexpr int TRANS_A = A == Major::MN, TRANS_B = B == Major::MN;
  if constexpr (std::is_same_v<In, __half>) {
    TCGEMM_WGMMA_M64N192K16("f16");
  } else {
    TCGEMM_WGMMA_M64N192K16("bf16");
  }
}

#undef TCGEMM_WGMMA_M64N144K16
#undef TCGEMM_WGMMA_M64N176K16
#undef TCGEMM_WGMMA_M64N192K16
#undef TCGEMM_ACCUMULATORS_8

}  // namespace tcgemm::sm90

#endif
