// float32 as the sum of two tf32 numbers: x = hi + lo, 11 + 11 leading bits.
//
// hi is x itself, whose lower 13 bits the tensor cores ignore. Where x is Inf or NaN, hi is 1 with the
// sign of x and lo is x; then every product is what it should be, Inf times Inf too, since no Inf
// meets the lower half of the other operand, which may be 0 or of the other sign.
#pragma once

#include "sm90.cuh"

namespace tcgemm::sm90 {

// x without hi; NaN where x is not finite.
__device__ __forceinline__ float remainder(uint32_t x) {
  return __uint_as_float(x) - __uint_as_float(x & 0xffffe000);
}

// lo of a finite x, from its remainder. The tensor cores ignore its lower 13 bits too, so that the
// 0x1000 rounds to nearest as cvt.rna does.
__device__ __forceinline__ uint32_t low_part(float remainder) {
  return __float_as_uint(remainder) + 0x1000;
}

// For any x: it becomes hi; returns lo. x + x is Inf or NaN as x is, and a NaN in its upper bits.
__device__ __forceinline__ uint32_t split_any(uint32_t& x) {
  if ((x & 0x7fffffff) < 0x7f800000) return low_part(remainder(x));
  const float twice = __uint_as_float(x) + __uint_as_float(x);
  x = (x & 0x80000000) | 0x3f800000;
  return __float_as_uint(twice);
}

// COUNT numbers become hi, and lo is written. True where that changed one of them, which is rare: a
// sum of remainders tells.
template <int COUNT>
__device__ __forceinline__ bool split(uint32_t* x, uint32_t* lo) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const float rest = remainder(x[i]);
    lo[i] = low_part(rest);
    sum = i == 0 ? rest : sum + rest;
  }
  if (sum == sum) return false;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) lo[i] = split_any(x[i]);
  return true;
}

// Splits BYTES of shared memory at `tile`, by THREADS threads of which this is number `thread`: the
// low parts are written BYTES behind it. Element by element, so any swizzle stays as it is. Hazard:
// for wgmma to see them, each thread must run fence_proxy_async before it says that it is done.
template <uint32_t BYTES, uint32_t THREADS>
__device__ __forceinline__ void split_float32(uint32_t tile, uint32_t thread) {
  constexpr uint32_t BATCH = 2;  // vectors in flight
  for (uint32_t first = thread * 16; first < BYTES; first += BATCH * THREADS * 16) {
    union {
      uint4 vectors[BATCH];
      uint32_t words[4 * BATCH];
    } x, lo;
#pragma unroll
    for (uint32_t i = 0; i < BATCH; ++i) {
      const uint32_t at = first + i * THREADS * 16;
      x.vectors[i] = at < BYTES ? ld_shared_v4(tile + at) : make_uint4(0, 0, 0, 0);
    }
    const bool changed = split<4 * BATCH>(x.words, lo.words);
#pragma unroll
    for (uint32_t i = 0; i < BATCH; ++i) {
      const uint32_t at = first + i * THREADS * 16;
      if (at >= BYTES) continue;
      st_shared_v4(tile + BYTES + at, lo.vectors[i]);
      if (changed) st_shared_v4(tile + at, x.vectors[i]);
    }
  }
}

}  // namespace tcgemm::sm90
