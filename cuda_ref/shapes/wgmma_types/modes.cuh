// The ways in which wgmma multiplies K-major operands, and the choice of one for a problem.
#pragma once

#include "host/gemm.cuh"
#include "ptx/wgmma_kmajor.cuh"

namespace tcgemm::sm90 {

template <DType IN, Compute COMPUTE>
struct Mode {
  static constexpr Mma MMA = IN == DType::s8     ? Mma::s8
                             : IN == DType::u8   ? Mma::u8
                             : IN == DType::e4m3 ? Mma::e4m3
                             : IN == DType::e5m2 ? Mma::e5m2
                                                 : Mma::tf32;
  static constexpr bool SPLIT = COMPUTE == Compute::tf32x3;
  static constexpr bool PROMOTE = SPLIT || COMPUTE == Compute::f32;
  static constexpr int ITEM = IN == DType::f32 ? 4 : 1;  // bytes
  using Acc = std::conditional_t<MMA == Mma::s8 || MMA == Mma::u8, int32_t, float>;
};

// What a build is for: the build system compiles one case at a time. By default it is all cases.
#ifdef TCGEMM_IN
#define TCGEMM_BUILT(IN, OUT, COMPUTE) \
  (int(IN) == TCGEMM_IN && int(OUT) == TCGEMM_OUT && int(COMPUTE) == TCGEMM_COMPUTE)
#else
#define TCGEMM_BUILT(IN, OUT, COMPUTE) true
#endif

// *error = body(Mode{}, Out{}) where this case is asked for and this build has it.
template <DType IN, DType OUT, Compute COMPUTE, typename Out, typename Body>
bool with_mode(const Gemm& gemm, const Body& body, int* error) {
  if constexpr (TCGEMM_BUILT(IN, OUT, COMPUTE)) {
    if (gemm.in != IN || gemm.out != OUT || gemm.compute != COMPUTE) return false;
    *error = body(Mode<IN, COMPUTE>{}, Out{});
    return true;
  }
  return false;
}

#undef TCGEMM_BUILT

template <DType IN, Compute COMPUTE, typename Body>
bool with_8_bit_mode(const Gemm& gemm, const Body& body, int* error) {
  return with_mode<IN, DType::f16, COMPUTE, __half>(gemm, body, error) ||
         with_mode<IN, DType::bf16, COMPUTE, __nv_bfloat16>(gemm, body, error) ||
         with_mode<IN, DType::f32, COMPUTE, float>(gemm, body, error);
}

// Calls body(Mode{}, Out{}) for the types and the way of summing that are asked for.
template <typename Body>
int with_modes(const Gemm& gemm, const Body& body) {
  using D = DType;
  using X = Compute;
  int error = cudaErrorNotSupported;
  (void)(with_mode<D::s8, D::s32, X::s32, int32_t>(gemm, body, &error) ||
         with_mode<D::u8, D::s32, X::s32, int32_t>(gemm, body, &error) ||
         with_8_bit_mode<D::e4m3, X::fast>(gemm, body, &error) ||
         with_8_bit_mode<D::e4m3, X::f32>(gemm, body, &error) ||
         with_8_bit_mode<D::e5m2, X::fast>(gemm, body, &error) ||
         with_8_bit_mode<D::e5m2, X::f32>(gemm, body, &error) ||
         with_mode<D::f32, D::f32, X::tf32, float>(gemm, body, &error) ||
         with_mode<D::f32, D::f32, X::tf32x3, float>(gemm, body, &error));
  return error;
}

}  // namespace tcgemm::sm90
