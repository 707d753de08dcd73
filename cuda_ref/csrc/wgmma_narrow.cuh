// wgmma with a narrow n, for products with few rows or columns: D[64, n] += A[64, 16] @ B[16, n].
// Operands, descriptors and accumulators are as in wgmma.cuh, with n / 2 accumulators a thread.
#pragma once

#include "wgmma.cuh"

#ifndef TCGEMM_SIMULATOR  // which has these names in hopper.hpp

namespace tcgemm::sm90 {

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n16k16(float (&d)[8], uint64_t a, uint64_t b,
                                                bool accumulate) {
  TCGEMM_WGMMA_16_BITS(8, "m64n16k16", "%8", "%9", "%10", ", 1, 1, %11, %12");
}

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n48k16(float (&d)[24], uint64_t a, uint64_t b,
                                                bool accumulate) {
  TCGEMM_WGMMA_16_BITS(24, "m64n48k16", "%24", "%25", "%26", ", 1, 1, %27, %28");
}

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n56k16(float (&d)[28], uint64_t a, uint64_t b,
                                                bool accumulate) {
  TCGEMM_WGMMA_16_BITS(28, "m64n56k16", "%28", "%29", "%30", ", 1, 1, %31, %32");
}

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n64k16(float (&d)[32], uint64_t a, uint64_t b,
                                                bool accumulate) {
  TCGEMM_WGMMA_16_BITS(32, "m64n64k16", "%32", "%33", "%34", ", 1, 1, %35, %36");
}

}  // namespace tcgemm::sm90

#endif
