// float32 as the sum of two tf32 numbers: x = hi + lo, 11 + 11 leading bits.
//
// hi is x itself, whose lower 13 bits the tensor cores ignore. Where x is Inf or NaN, hi is 1 with the
// sign of x and lo is x; then every product is what it should be, Inf times Inf too, since no Inf
// meets the lower half of the other operand, which may be 0 or of the other sign.
#pragma once

#include "ptx/sm90.cuh"

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

// COUNT numbers become hi, and lo is written. What is not finite is rare: a sum of remainders tells.
template <int COUNT>
__device__ __forceinline__ void split(uint32_t (&x)[COUNT], uint32_t (&lo)[COUNT]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const float rest = remainder(x[i]);
    lo[i] = low_part(rest);
    sum += rest;
  }
  if (sum == sum) return;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) lo[i] = split_any(x[i]);
}

// Splits BYTES of shared memory at `tile`, by THREADS threads of which this is number `thread`: the
// low parts are written BYTES behind it. Element by element, so any swizzle stays as it is. All of a
// thread's loads are in flight at once, since the way through shared memory is long where the tensor
// cores read too. Hazard: for wgmma to see what is written, each thread must run fence_proxy_async
// before it says that it is done.
template <uint32_t BYTES, uint32_t THREADS>
__device__ __forceinline__ void split_float32(uint32_t tile, uint32_t thread) {
  constexpr uint32_t COUNT = (BYTES / 16 - 1) / THREADS + 1;  // vectors of a thread
  const auto address = [&](uint32_t i) { return tile + (thread + i * THREADS) * 16; };
  const auto exists = [&](uint32_t i) { return thread + i * THREADS < BYTES / 16; };
  uint4 x[COUNT];
#pragma unroll
  for (uint32_t i = 0; i < COUNT; ++i)
    x[i] = exists(i) ? ld_shared_v4(address(i)) : make_uint4(0, 0, 0, 0);
  float sum = 0;
#pragma unroll
  for (uint32_t i = 0; i < COUNT; ++i) {
    const float rests[4] = {remainder(x[i].x), remainder(x[i].y), remainder(x[i].z),
                            remainder(x[i].w)};
    sum += (rests[0] + rests[1]) + (rests[2] + rests[3]);
    if (exists(i))
      st_shared_v4(address(i) + BYTES, make_uint4(low_part(rests[0]), low_part(rests[1]),
                                                  low_part(rests[2]), low_part(rests[3])));
  }
  if (sum == sum) return;
#pragma unroll 1
  for (uint32_t i = 0; exists(i); ++i) {
    uint4 hi = ld_shared_v4(address(i));
    const uint4 lo = make_uint4(split_any(hi.x), split_any(hi.y), split_any(hi.z),
                                split_any(hi.w));
    st_shared_v4(address(i), hi);
    st_shared_v4(address(i) + BYTES, lo);
  }
}

}  // namespace tcgemm::sm90
