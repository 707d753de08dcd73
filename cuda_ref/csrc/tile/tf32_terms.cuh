// float32 as the sum of two tf32 numbers: x = hi + lo, 11 + 11 leading bits.
//
// The tensor cores ignore the lower 13 bits of what they are given. A's hi is A itself, cut off so:
// its lo is at most 2^-10 of it, and costs no register more. B's hi is rounded to nearest, by adding
// half of what is ignored: its lo is at most 2^-11 of it and of either sign, and lo lo, which is left
// out, at most 2^-21 and of either sign. With both cut off it would be up to 2^-20, and always
// positive. Where x is Inf or NaN, hi is 1 with the sign of x and lo is x; then every product is what
// it should be, Inf times Inf too, since no Inf meets the lower half of the other operand, which may
// be 0 or of the other sign.
#pragma once

#include "host/gemm.cuh"

namespace tcgemm {

// Added to a number's bits: half of the lowest bit that the tensor cores look at, and nothing.
constexpr uint32_t ROUNDED = 0x1000, CUT_OFF = 0;

// x without what the tensor cores see of hi; NaN or Inf where x is not finite, or hi is not.
__device__ __forceinline__ float remainder(uint32_t x, uint32_t hi) {
  return __uint_as_float(x) - __uint_as_float(hi & 0xffffe000);
}

// lo of a finite x, from its remainder, rounded to nearest as cvt.rna does.
__device__ __forceinline__ uint32_t low_part(float remainder) {
  return __float_as_uint(remainder) + ROUNDED;
}

// For any x: it becomes hi; returns lo. A number too large to be rounded up is cut off. x + x is Inf
// or NaN as x is, and a NaN in its upper bits.
template <uint32_t HOW>
__device__ __forceinline__ uint32_t split_any(uint32_t& x) {
  if ((x & 0x7fffffff) < 0x7f800000) {
    const uint32_t up = x + HOW, hi = (up & 0x7fffffff) < 0x7f800000 ? up : x;
    const float rest = remainder(x, hi);
    x = hi;
    return low_part(rest);
  }
  const float twice = __uint_as_float(x) + __uint_as_float(x);
  x = (x & 0x80000000) | 0x3f800000;
  return __float_as_uint(twice);
}

// COUNT finite numbers become hi, and lo is written. Returns the sum of the remainders, which is not
// finite where a number was not, or where hi is not: then neither is right.
template <uint32_t HOW, int COUNT>
__device__ __forceinline__ float split_finite(uint32_t (&x)[COUNT], uint32_t (&lo)[COUNT]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const uint32_t hi = x[i] + HOW;
    const float rest = remainder(x[i], hi);
    x[i] = hi;
    lo[i] = low_part(rest);
    sum += rest;
  }
  return sum;
}

// The same of any numbers. What is not finite is rare.
template <uint32_t HOW, int COUNT>
__device__ __forceinline__ void split(uint32_t (&x)[COUNT], uint32_t (&lo)[COUNT]) {
  const float sum = split_finite<HOW>(x, lo);
  if (HOW == CUT_OFF ? sum == sum : sum - sum == 0) return;  // hi is Inf only where it is rounded
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    x[i] -= HOW;
    lo[i] = split_any<HOW>(x[i]);
  }
}

}  // namespace tcgemm
