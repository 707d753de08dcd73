// mma_types.cu: what a lane has in registers, and what mma.sync makes of it.
#pragma once

#include "ptx/mma.cuh"
#include "tile/tf32.cuh"
#include "tile/tf32_terms.cuh"

namespace tcgemm {

// What a lane has of a part of an operand, and of 16 x 16 sums.
template <typename Real>
struct Elements {
  Real x[4];
};
template <typename Real>
struct Sums {
  Real x[2][4];  // of the columns of either half of B
};

// Makes of x, which is terms[0].x, what the tensor cores take: a tf32 number, rounded, or two, as in
// tile/tf32_terms.cuh; they ignore the lower 13 bits. Not CAREFUL, it is right where all numbers are
// finite: returns what sums to a finite number then.
template <Compute COMPUTE, bool CAREFUL, uint32_t HOW, typename Real>
__device__ __forceinline__ float to_terms(Elements<Real>* terms) {
  float sum = 0;
  if constexpr (COMPUTE == Compute::tf32) {
#pragma unroll
    for (float& x : terms[0].x) {
      sum += x;
      x = CAREFUL ? to_tf32(x) : __uint_as_float(__float_as_uint(x) + ROUNDED);
    }
  } else if constexpr (COMPUTE == Compute::tf32x3) {
    uint32_t hi[4], lo[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) hi[e] = __float_as_uint(terms[0].x[e]);
    if constexpr (CAREFUL) {
#pragma unroll
      for (int e = 0; e < 4; ++e) lo[e] = split_any<HOW>(hi[e]);
    } else {
      sum = split_finite<HOW>(hi, lo);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      terms[0].x[e] = __uint_as_float(hi[e]);
      terms[1].x[e] = __uint_as_float(lo[e]);
    }
  }
  return CAREFUL ? 0.0f : sum;
}

// sums += a * b, of as many terms as COMPUTE has. The tensor cores cut off what they sum, so that the
// products of terms start from zero and are added in float32, the smallest first.
template <Compute COMPUTE, typename Real>
__device__ __forceinline__ void multiply(Sums<Real>& sums, const Elements<Real>* a,
                                         const Elements<Real>* b) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    Real(&d)[4] = sums.x[h];
    if constexpr (COMPUTE == Compute::f64) {
      mma_m16n8k8_f64(d, a[0].x, {b[0].x[2 * h], b[0].x[2 * h + 1]});
    } else if constexpr (COMPUTE == Compute::tf32) {
      mma_m16n8k8_tf32(d, a[0].x, &b[0].x[2 * h]);
    } else {
      float products[4] = {};
      mma_m16n8k8_tf32(products, a[1].x, &b[0].x[2 * h]);
      mma_m16n8k8_tf32(products, a[0].x, &b[1].x[2 * h]);
      mma_m16n8k8_tf32(products, a[0].x, &b[0].x[2 * h]);
#pragma unroll
      for (int e = 0; e < 4; ++e) d[e] += products[e];
    }
  }
}

}  // namespace tcgemm
