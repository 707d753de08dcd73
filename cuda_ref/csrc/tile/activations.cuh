// The activations: for each a number, a careful form for any rung, and a short one for Hopper's
// accumulators. A new one is a name in the enum, from which Python reads the names that rungs fuse,
// and a case in `activate` and in `activate_sums`, without which it would be relu
// (tests/test_activations.py).
#pragma once

#include <cstdint>
#include <type_traits>

#include "ptx/math.cuh"

namespace tcgemm {

// Up to 6: sm90/epilogue_fused.cuh keeps them in three bits, and 7 is any of them.
enum class Activation : int32_t { none, relu, gelu, gelu_tanh, silu };

#if defined(__CUDACC__) || defined(TCGEMM_SIMULATOR)  // a host compiler needs the names alone

// Not fmax, which drops NaN.
template <typename Acc>
__device__ inline Acc relu(Acc x) {
  return x < Acc(0) ? Acc(0) : x;
}
__device__ inline float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); }
__device__ inline double gelu(double x) { return 0.5 * x * (1.0 + erf(x * 0.70710678118654752)); }
// x / (1 + exp(-x)); the quick division errs by 2 units in the last place.
__device__ inline float silu(float x) { return __fdividef(x, 1.0f + expf(-x)); }
__device__ inline double silu(double x) { return x / (1.0 + exp(-x)); }
// x (1 + tanh(u)) / 2 is x / (1 + exp(-2 u)).
__device__ inline float gelu_tanh(float x) {
  return __fdividef(x, 1.0f + expf(-1.59576912f * (x + 0.044715f * x * x * x)));
}
__device__ inline double gelu_tanh(double x) {
  return 0.5 * x * (1.0 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
}

template <typename Acc, int COUNT>
__device__ inline void activate(Activation activation, Acc (&x)[COUNT]) {
  if (activation == Activation::none) return;
#pragma unroll
  for (int e = 0; e < COUNT; ++e) {
    if constexpr (std::is_same_v<Acc, int32_t>) {
      x[e] = relu(x[e]);
    } else {
      switch (activation) {
        case Activation::gelu: x[e] = gelu(x[e]); break;
        case Activation::gelu_tanh: x[e] = gelu_tanh(x[e]); break;
        case Activation::silu: x[e] = silu(x[e]); break;
        default: x[e] = relu(x[e]);
      }
    }
  }
}

namespace sm90 {

// What follows has no branch, and few instructions for each value.

// Phi(-z) = erfc(z / sqrt 2) / 2 = 2^P(z) for z from 0 to 8, of the normal distribution's Phi, with
// P fitted so that it is within 3e-7.
__device__ __forceinline__ float normal_tail(float z) {
  float p = -0.000518856279f;
  p = p * z + 0.007387185f;
  p = p * z - 0.0525379777f;
  p = p * z - 0.459276736f;
  p = p * z - 1.15108311f;
  p = p * z - 1.00000083f;
  return ex2_approx(p);
}

// x Phi(x); no cancellation where x is negative. Past z = 8 the term is below 1e-15 and stays
// there. 9 instructions, one of them on the special function unit.
__device__ __forceinline__ float fast_gelu(float x) {
  const float z = fminf(fabsf(x), 8.0f);
  return max_nan(x, 0.0f) - z * normal_tail(z);
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

}  // namespace sm90

#endif

}  // namespace tcgemm
