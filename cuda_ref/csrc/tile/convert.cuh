// Between the operands' types and float32, the type of every sum.
#pragma once

#include "ptx/cp_async.cuh"
#include "host/gemm.cuh"

namespace tcgemm {

__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(__nv_fp8_e4m3 x) { return static_cast<float>(x); }
__device__ inline float to_float(__nv_fp8_e5m2 x) { return static_cast<float>(x); }
__device__ inline float to_float(float x) { return x; }

#ifndef TCGEMM_SIMULATOR

// cvt.rna.tf32: to 10 bits of mantissa, ties away from zero. Older GPUs have neither the instruction
// nor a rung that asks for it.
__device__ inline float to_tf32(float x) {
#if __CUDA_ARCH__ >= 800
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return __uint_as_float(bits);
#else
  return __uint_as_float((__float_as_uint(x) + 0x1000) & 0xffffe000);
#endif
}

#endif  // TCGEMM_SIMULATOR

// Zero of any type of operand.
template <typename In>
__device__ inline In zero() {
  return In(0.0f);
}

// Rounds to nearest even; above the largest float16 the result is Inf.
template <typename Out>
__device__ inline Out from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __half from_float<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// Elements of C in one 16-byte store: 8 of a 16-bit type, 4 of float32.
template <typename Out>
constexpr int OUT_VECTOR = 16 / sizeof(Out);

// Narrows OUT_VECTOR<Out> floats and stores them as one vector. Both addresses are multiples of
// 16 bytes.
template <typename Out>
__device__ inline void store_vector(Out* to, const float* from) {
  union {
    Out elements[OUT_VECTOR<Out>];
    uint4 vector;
  } packed{};
#pragma unroll
  for (int e = 0; e < OUT_VECTOR<Out>; e += 4) {
    const float4 four = *reinterpret_cast<const float4*>(from + e);
    packed.elements[e] = from_float<Out>(four.x);
    packed.elements[e + 1] = from_float<Out>(four.y);
    packed.elements[e + 2] = from_float<Out>(four.z);
    packed.elements[e + 3] = from_float<Out>(four.w);
  }
  st_global_16(to, packed.vector);
}

}  // namespace tcgemm
