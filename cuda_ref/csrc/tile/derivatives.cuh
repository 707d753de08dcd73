// The derivatives of the activations, as a layer's backward pass multiplies by them.
#pragma once

#include "tile/activations.cuh"

namespace tcgemm::sm90 {

// e = exp(-|x|) and r = 1 / (1 + e) have no overflow, and e r r = s (1 - s) no cancellation, for
// the logistic function s, which is r where x is positive and e r where it is not.
struct Logistic {
  float s, slope;  // slope: s (1 - s)

  // x is given in units of log 2.
  __device__ __forceinline__ explicit Logistic(float x) {
    const float e = ex2_approx(-fabsf(x)), r = rcp_approx(1.0f + e), other = e * r;
    s = x > 0.0f ? r : other;
    slope = other * r;
  }
};

template <Activation ACTIVATION>
using Constant = std::integral_constant<Activation, ACTIVATION>;

// dy times the derivative of the activation at x. Inf and NaN give what torch gives.
template <Activation ACTIVATION>
__device__ __forceinline__ float through(float dy, float x) {
  if constexpr (ACTIVATION == Activation::relu) {
    return x <= 0.0f ? 0.0f : dy;  // a product would make NaN of Inf
  } else if constexpr (ACTIVATION == Activation::gelu) {
    // Phi(x) + x phi(x), with phi the density.
    const float tail = normal_tail(fminf(fabsf(x), 8.0f));
    const float distribution = x > 0.0f ? 1.0f - tail : tail;
    const float density = ex2_approx(-0.721347520f * x * x);
    return dy * (distribution + 0.398942280f * x * density);
  } else if constexpr (ACTIVATION == Activation::gelu_tanh) {
    // x s(u) with u = 2 sqrt(2 / pi) (x + 0.044715 x^3).
    const float square = x * x;
    const Logistic of(x * (2.30220819f + 0.102943242f * square));
    return dy * (of.s + x * of.slope * (1.59576912f + 0.214064449f * square));
  } else {
    static_assert(ACTIVATION == Activation::silu, "the derivative of this activation is missing");
    const Logistic of(1.44269504f * x);
    return dy * (of.s + x * of.slope);
  }
}

}  // namespace tcgemm::sm90
