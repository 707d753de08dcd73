// From what is asked at run time to the template arguments of a kernel. Host code.
#pragma once

#include <type_traits>
#include <utility>

#include "host/gemm.cuh"

// Compute capability of the target times ten; the build passes it.
#ifndef TCGEMM_SM
#define TCGEMM_SM 80
#endif

namespace tcgemm {

// The problem whose result is C transposed: C^T[N, M] = B^T[N, K] A^T[K, M]. A transposed matrix is
// the same memory with its strides exchanged, so nothing is copied. What is fused is transposed with C.
inline Gemm transposed(const Gemm& gemm) {
  Gemm result = gemm;
  result.a = gemm.b;
  result.b = gemm.a;
  for (Matrix* matrix : {&result.a, &result.b, &result.c, &result.c_in}) {
    std::swap(matrix->rows, matrix->cols);
    std::swap(matrix->row_stride, matrix->col_stride);
  }
  for (Vector* vector : {&result.bias, &result.scale_a, &result.scale_b}) {
    std::swap(vector->row_stride, vector->col_stride);
  }
  std::swap(result.mma_m, result.mma_n);
  return result;
}

// What is planned for the problem; zeros where nothing is. With `transposed` the tile is that of the
// transposed problem.
inline Plan plan_of(const Gemm& gemm, bool transposed = false) {
  Plan plan = gemm.plan != nullptr ? *gemm.plan : Plan{};
  if (transposed) std::swap(plan.block_m, plan.block_n);
  return plan;
}

// Calls body(T{}) with that T of Ts whose tile of C, T::M x T::N, is planned, and with the last where
// none is. cudaErrorNotSupported where a tile is planned that no T has.
template <typename... Ts, typename Body>
int with_planned(const Gemm& gemm, const Body& body) {
  const Plan plan = plan_of(gemm);
  int result = cudaErrorNotSupported, left = sizeof...(Ts);
  bool found = false;
  const auto try_tiling = [&](auto tiling) {
    using T = decltype(tiling);
    --left;
    if (found || (plan.block_m == 0 ? left > 0 : plan.block_m != T::M || plan.block_n != T::N))
      return;
    found = true, result = body(tiling);
  };
  (try_tiling(Ts{}), ...);
  return result;
}

// True where consecutive elements of a column, not of a row, are neighbours in memory.
inline bool column_major(const Matrix& matrix) {
  if (matrix.row_stride != 1) return false;
  return matrix.col_stride != 1 || matrix.rows > matrix.cols;
}

// The problem as a kernel that writes rows of C wants it: C is column-major in neither case.
inline Gemm with_rows_of_c(const Gemm& gemm) {
  return column_major(gemm.c) ? transposed(gemm) : gemm;
}

// Calls body(In{}, Out{}) with the element types of the problem.
template <typename Body>
int with_types(const Gemm& gemm, Body body) {
  const bool wide = gemm.out == DType::f32;
  if (gemm.in == DType::f16) return wide ? body(__half{}, float{}) : body(__half{}, __half{});
  return wide ? body(__nv_bfloat16{}, float{}) : body(__nv_bfloat16{}, __nv_bfloat16{});
}

// The same with the 8-bit floats, whose results may be of three types.
template <typename Body>
int with_small_floats(const Gemm& gemm, Body body) {
  const auto with_outputs = [&](auto in) {
    switch (gemm.out) {
      case DType::f16: return body(in, __half{});
      case DType::bf16: return body(in, __nv_bfloat16{});
      default: return body(in, float{});
    }
  };
  switch (gemm.in) {
    case DType::e4m3: return with_outputs(__nv_fp8_e4m3{});
    case DType::e5m2: return with_outputs(__nv_fp8_e5m2{});
    default: return with_types(gemm, body);
  }
}

// The same for kernels with WMMA fragments, which hold bfloat16 from sm_80 on.
template <typename Body>
int with_fragment_types(const Gemm& gemm, Body body) {
#if TCGEMM_SM >= 80
  return with_types(gemm, body);
#else
  if (gemm.in != DType::f16) return cudaErrorNotSupported;
  return gemm.out == DType::f32 ? body(__half{}, float{}) : body(__half{}, __half{});
#endif
}

// Calls body(a_t, b_t) with two compile-time booleans: whether A and B are stored transposed. So
// nn, nt, tn and tt are one kernel each, and nothing is copied.
template <typename Body>
int with_layouts(const Gemm& gemm, Body body) {
  if (column_major(gemm.a)) {
    return column_major(gemm.b) ? body(std::true_type{}, std::true_type{})
                                : body(std::true_type{}, std::false_type{});
  }
  return column_major(gemm.b) ? body(std::false_type{}, std::true_type{})
                              : body(std::false_type{}, std::false_type{});
}

// The WMMA layout of an operand that is, or is not, stored transposed.
template <bool TRANSPOSED>
using Layout = std::conditional_t<TRANSPOSED, nvcuda::wmma::col_major, nvcuda::wmma::row_major>;

// Elements from one row (row-major) or column (column-major) to the next: WMMA's ldm.
inline int64_t leading_dimension(const Matrix& matrix) {
  return column_major(matrix) ? matrix.col_stride : matrix.row_stride;
}

}  // namespace tcgemm
