// wgmma with an n that is no power of two, for tiles that fit a matrix better: D[64, n] +=
// A[64, 16] @ B[16, n]. Operands, descriptors and accumulators are as in wgmma.cuh, with n / 2
// accumulators a thread.
#pragma once

#include "wgmma.cuh"

#ifndef TCGEMM_SIMULATOR  // which has these names in hopper.hpp

namespace tcgemm::sm90 {

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n96k16(float (&d)[48], uint64_t a, uint64_t b,
                                                bool accumulate) {
  TCGEMM_WGMMA_16_BITS(48, "m64n96k16", "%48", "%49", "%50", ", 1, 1, %51, %52");
}

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n112k16(float (&d)[56], uint64_t a, uint64_t b,
                                                 bool accumulate) {
  TCGEMM_WGMMA_16_BITS(56, "m64n112k16", "%56", "%57", "%58", ", 1, 1, %59, %60");
}

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n144k16(float (&d)[72], uint64_t a, uint64_t b,
                                                 bool accumulate) {
  TCGEMM_WGMMA_16_BITS(72, "m64n144k16", "%72", "%73", "%74", ", 1, 1, %75, %76");
}

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n176k16(float (&d)[88], uint64_t a, uint64_t b,
                                                 bool accumulate) {
  TCGEMM_WGMMA_16_BITS(88, "m64n176k16", "%88", "%89", "%90", ", 1, 1, %91, %92");
}

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n192k16(float (&d)[96], uint64_t a, uint64_t b,
                                                 bool accumulate) {
  TCGEMM_WGMMA_16_BITS(96, "m64n192k16", "%96", "%97", "%98", ", 1, 1, %99, %100");
}

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n224k16(float (&d)[112], uint64_t a, uint64_t b,
                                                 bool accumulate) {
  TCGEMM_WGMMA_16_BITS(112, "m64n224k16", "%112", "%113", "%114", ", 1, 1, %115, %116");
}

}  // namespace tcgemm::sm90

#endif
