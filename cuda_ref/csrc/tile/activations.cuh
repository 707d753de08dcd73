// The activations of a Hopper rung's sums: no branch, and few instructions for each of them.
#pragma once

#include "tile/epilogue.cuh"
#include "ptx/sm90.cuh"

namespace tcgemm::sm90 {

// x Phi(x), the normal distribution's Phi: erfc(z / sqrt 2) / 2 = 2^P(z) for z = |x|, with P fitted so
// that 2^P(z) is within 3e-7; no cancellation where x is negative. Past z = 8 the term is below 1e-15
// and stays there. 9 instructions, one of them on the special function unit.
__device__ __forceinline__ float fast_gelu(float x) {
  const float z = fminf(fabsf(x), 8.0f);
  float p = -0.000518856279f;
  p = p * z + 0.007387185f;
  p = p * z - 0.0525379777f;
  p = p * z - 0.459276736f;
  p = p * z - 1.15108311f;
  p = p * z - 1.00000083f;
  return max_nan(x, 0.0f) - z * ex2_approx(p);
}

// x / (1 + 2^t), of which a divisor past 2^126 makes 0; NaN for x of minus infinity.
__device__ __forceinline__ float times_logistic(float x, float t) {
  return x * rcp_approx(1.0f + ex2_approx(t));
}

// The activation of COUNT values, d[first] and on.
template <int COUNT, typename Acc, int REGISTERS>
__device__ __forceinline__ void activate_sums(Activation activation, Acc (&d)[REGISTERS],
                                              int first) {
  if (activation == Activation::none) return;
  const auto activate = [&](auto function) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) d[first + i] = function(d[first + i]);
  };
  if constexpr (std::is_same_v<Acc, float>) {
    switch (activation) {
      case Activation::gelu: return activate([](float x) { return fast_gelu(x); });
      case Activation::gelu_tanh:
        return activate([](float x) {
          return times_logistic(x, x * (-2.30220819f - 0.102943242f * x * x));
        });
      case Activation::silu:
        return activate([](float x) { return times_logistic(x, -1.44269504f * x); });
      default: return activate([](float x) { return max_nan(x, 0.0f); });
    }
  } else {
    activate([](Acc x) { return relu(x); });
  }
}

}  // namespace tcgemm::sm90
