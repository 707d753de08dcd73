// float32 as the sum of two tf32 numbers: x = hi + lo, 11 + 11 leading bits.
#pragma once

#include "sm90.cuh"

namespace tcgemm::sm90 {

// lo, for a hi that is x itself, whose lower 13 bits the tensor cores ignore; of lo they ignore them
// too, so that the 0x1000 rounds to nearest as cvt.rna does. Of Inf and NaN the difference is the NaN
// 0x7FFFFFFF, which becomes -0.
__device__ __forceinline__ uint32_t low_part(uint32_t x) {
  return __float_as_uint(__uint_as_float(x) - __uint_as_float(x & 0xffffe000)) + 0x1000;
}

// Writes the low parts of BYTES of shared memory at `tile` behind them, by THREADS threads of which
// this is number `thread`. Element by element, so any swizzle stays as it is. Hazard: for wgmma to
// see them, each thread must run fence_proxy_async before it says that it is done.
template <uint32_t BYTES, uint32_t THREADS>
__device__ __forceinline__ void split_float32(uint32_t tile, uint32_t thread) {
  constexpr uint32_t BATCH = 5;  // vectors in flight
  for (uint32_t first = thread * 16; first < BYTES; first += BATCH * THREADS * 16) {
    uint4 x[BATCH];
#pragma unroll
    for (uint32_t i = 0; i < BATCH; ++i) {
      const uint32_t at = first + i * THREADS * 16;
      if (at < BYTES) x[i] = ld_shared_v4(tile + at);
    }
#pragma unroll
    for (uint32_t i = 0; i < BATCH; ++i) {
      const uint32_t at = first + i * THREADS * 16;
      if (at < BYTES)
        st_shared_v4(tile + BYTES + at, make_uint4(low_part(x[i].x), low_part(x[i].y),
                                                   low_part(x[i].z), low_part(x[i].w)));
    }
  }
}

}  // namespace tcgemm::sm90
