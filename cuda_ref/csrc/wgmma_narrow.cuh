// wgmma with a narrow n, for products with few rows or columns: D[64, n] += A[64, 16] @ B[16, n].
// Operands, descriptors and accumulators are as in wgmma.cuh, with n / 2 accumulators a thread.
#pragma once

#include "wgmma.cuh"

#ifndef TCGEMM_SIMULATOR  // which has these names in hopper.hpp

namespace tcgemm::sm90 {

#define TCGEMM_ACCUMULATORS_8(d, i)                                                           \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])

#define TCGEMM_WGMMA_M64N16K16(TYPE)                                                      \
  asm volatile(                                                                           \
      "{\n"                                                                               \
      ".reg .pred p;\n"                                                                   \
      "setp.ne.b32 p, %10, 0;\n"                                                          \
      "wgmma.mma_async.sync.aligned.m64n16k16.f32." TYPE "." TYPE " "                     \
      "{%0, %1, %2, %3, %4, %5, %6, %7}, "                                                \
      "%8, %9, p, 1, 1, %11, %12;\n"                                                      \
      "}\n"                                                                               \
      : TCGEMM_ACCUMULATORS_8(d, 0)                                                       \
      : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)), "n"(TRANS_A), "n"(TRANS_B))

#define TCGEMM_WGMMA_M64N64K16(TYPE)                                                      \
  asm volatile(                                                                           \
      "{\n"                                                                               \
      ".reg .pred p;\n"                                                                   \
      "setp.ne.b32 p, %34, 0;\n"                                                          \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " "                     \
      "{%0, %1, %2, %3, %4, %5, %6, %7, "                                                 \
      " %8, %9, %10, %11, %12, %13, %14, %15, "                                           \
      " %16, %17, %18, %19, %20, %21, %22, %23, "                                         \
      " %24, %25, %26, %27, %28, %29, %30, %31}, "                                        \
      "%32, %33, p, 1, 1, %35, %36;\n"                                                    \
      "}\n"                                                                               \
      : TCGEMM_ACCUMULATORS_8(d, 0), TCGEMM_ACCUMULATORS_8(d, 8),                         \
        TCGEMM_ACCUMULATORS_8(d, 16), TCGEMM_ACCUMULATORS_8(d, 24)                        \
      : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)), "n"(TRANS_A), "n"(TRANS_B))

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n16k16(float (&d)[8], uint64_t a, uint64_t b,
                                                bool accumulate) {
  constexpr int TRANS_A = A == Major::MN, TRANS_B = B == Major::MN;
  if constexpr (std::is_same_v<In, __half>) {
    TCGEMM_WGMMA_M64N16K16("f16");
  } else {
    TCGEMM_WGMMA_M64N16K16("bf16");
  }
}

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n64k16(float (&d)[32], uint64_t a, uint64_t b,
                                                bool accumulate) {
  constexpr int TRANS_A = A == Major::MN, TRANS_B = B == Major::MN;
  if constexpr (std::is_same_v<In, __half>) {
    TCGEMM_WGMMA_M64N64K16("f16");
  } else {
    TCGEMM_WGMMA_M64N64K16("bf16");
  }
}

#undef TCGEMM_WGMMA_M64N16K16
#undef TCGEMM_WGMMA_M64N64K16
#undef TCGEMM_ACCUMULATORS_8

}  // namespace tcgemm::sm90

#endif
