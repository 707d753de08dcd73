// From the accumulator to the element of C: scales, alpha, beta * C_in, bias, activation, narrowing.
//
// A kernel holds some neighbours of a row of C in an array and calls finish, then narrow. Everything
// is decided at run time, once for the array; kernels of the plain product pass FUSED = false and
// compile to the narrowing alone.
#pragma once

#include <type_traits>

#include "tile/convert.cuh"

namespace tcgemm {

// What finish needs of a problem. Acc is the type of the accumulators: float, double or int32_t.
template <typename Acc>
struct Epilogue {
  const void* c_in;
  int64_t row_stride, col_stride, batch_stride;  // of c_in
  bool c_in_vectors;  // rows of c_in and their starts are 16-byte aligned
  Vector bias, scale_a, scale_b;
  Acc alpha, beta;
  Activation activation;
};

inline bool is_plain(const Gemm& gemm) {
  return gemm.alpha == 1.0 && !gemm.c_in.data && !gemm.bias.data && !gemm.scale_a.data &&
         !gemm.scale_b.data && gemm.activation == Activation::none;
}

// alpha or beta in the type of the accumulators; of an integer its lowest 32 bits.
template <typename Acc>
inline Acc scalar_of(double x) {
  if constexpr (std::is_same_v<Acc, int32_t>) {
    return static_cast<int32_t>(static_cast<uint32_t>(static_cast<int64_t>(x)));
  } else {
    return static_cast<Acc>(x);
  }
}

inline int64_t bytes_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return 8;
    case DType::f32:
    case DType::s32: return 4;
    case DType::f16:
    case DType::bf16: return 2;
    default: return 1;
  }
}

// True where 16-byte vectors reach along every row of every matrix of the batch.
inline bool rows_are_vectors(const Matrix& matrix, int64_t batch, DType dtype) {
  const int64_t bytes = bytes_of(dtype);
  return rows_aligned(matrix.data, matrix.rows, matrix.row_stride, matrix.col_stride, bytes) &&
         (batch == 1 || matrix.batch_stride * bytes % 16 == 0);
}

template <typename Acc>
inline Epilogue<Acc> epilogue_of(const Gemm& gemm) {
  const Matrix& c = gemm.c_in;
  return {c.data,
          c.row_stride,
          c.col_stride,
          c.batch_stride,
          c.data && rows_are_vectors(c, gemm.batch, gemm.out),
          gemm.bias,
          gemm.scale_a,
          gemm.scale_b,
          scalar_of<Acc>(gemm.alpha),
          scalar_of<Acc>(gemm.beta),
          gemm.activation};
}

// An element of C_in or bias in the type of the accumulators.
template <typename Acc, typename Out>
__device__ inline Acc widen(Out x) {
  if constexpr (std::is_same_v<Acc, Out>) {
    return x;
  } else {
    return to_float(x);
  }
}

// A result in the type of C. Inlined by force, as what follows, because a store of a call's result
// escapes the simulator's checks.
template <typename Out, typename Acc>
__device__ __forceinline__ Out narrow(Acc x) {
  if constexpr (std::is_same_v<Acc, Out>) {
    return x;
  } else {
    return from_float<Out>(x);
  }
}

// a * x + y; integers modulo 2^32, in unsigned arithmetic, whose overflow is defined.
template <typename Acc>
__device__ inline Acc multiply_add(Acc a, Acc x, Acc y) {
  if constexpr (std::is_same_v<Acc, int32_t>) {
    return static_cast<int32_t>(static_cast<uint32_t>(a) * static_cast<uint32_t>(x) +
                                static_cast<uint32_t>(y));
  } else {
    return a * x + y;
  }
}

// Reads COUNT neighbours; `vectors` promises that they begin at a multiple of their bytes.
template <int COUNT, typename Out>
__device__ inline void load_neighbours(Out (&to)[COUNT], const Out* from, int64_t stride,
                                       bool vectors, int inside) {
  constexpr int BYTES = COUNT * sizeof(Out);
  if constexpr (COUNT > 1 && (BYTES == 4 || BYTES == 8 || BYTES == 16)) {
    using Word = std::conditional_t<BYTES == 4, uint32_t,
                                    std::conditional_t<BYTES == 8, uint2, uint4>>;
    if (vectors && inside == COUNT) {
      union {
        Out elements[COUNT];
        Word word;
      } packed{};
      packed.word = *reinterpret_cast<const Word*>(from);
#pragma unroll
      for (int e = 0; e < COUNT; ++e) to[e] = packed.elements[e];
      return;
    }
  }
#pragma unroll
  for (int e = 0; e < COUNT; ++e) {
    if (e < inside) to[e] = from[e * stride];
  }
}

// Narrows as many results as 16 bytes hold and stores them as one vector, at a multiple of 16 bytes.
template <typename Out, typename Acc>
__device__ inline void store_narrowed(Out* to, const Acc (&x)[16 / sizeof(Out)]) {
  union {
    Out elements[16 / sizeof(Out)];
    uint4 vector;
  } packed{};
#pragma unroll
  for (int e = 0; e < 16 / sizeof(Out); ++e) packed.elements[e] = narrow<Out>(x[e]);
  st_global_16(to, packed.vector);
}

// x * scales * alpha + beta * c, where `c` holds what was read of C_in, which is not read here.
template <typename Out, typename Acc, int COUNT>
__device__ inline void scale_and_add(const Epilogue<Acc>& epilogue, Acc (&x)[COUNT],
                                     const Out (&c)[COUNT], int64_t m, int64_t n, int inside) {
  if constexpr (std::is_same_v<Acc, float>) {
    for (const Vector& scale : {epilogue.scale_a, epilogue.scale_b}) {
      if (!scale.data) continue;
      const float* from =
          static_cast<const float*>(scale.data) + m * scale.row_stride + n * scale.col_stride;
#pragma unroll
      for (int e = 0; e < COUNT; ++e) {
        if (e < inside) x[e] *= from[e * scale.col_stride];
      }
    }
  }
#pragma unroll
  for (int e = 0; e < COUNT; ++e) x[e] = multiply_add(epilogue.alpha, x[e], Acc(0));
  if (!epilogue.c_in) return;
#pragma unroll
  for (int e = 0; e < COUNT; ++e) x[e] = multiply_add(epilogue.beta, widen<Acc>(c[e]), x[e]);
}

// Reads the neighbours of C_in at (m, n).
template <typename Out, typename Acc, int COUNT>
__device__ inline void load_c_in(const Epilogue<Acc>& epilogue, Out (&c)[COUNT], int64_t m,
                                 int64_t n, int64_t batch, int inside) {
  const Out* from = static_cast<const Out*>(epilogue.c_in) + batch * epilogue.batch_stride +
                    m * epilogue.row_stride + n * epilogue.col_stride;
  load_neighbours(c, from, epilogue.col_stride, epilogue.c_in_vectors, inside);
}

// The bias of the neighbours at (m, n), zeros where there is none.
template <typename Out, typename Acc, int COUNT>
__device__ inline void load_bias(const Epilogue<Acc>& epilogue, Acc (&to)[COUNT], int64_t m,
                                 int64_t n, int inside) {
  const Vector& bias = epilogue.bias;
  const Out* from = static_cast<const Out*>(bias.data) + m * bias.row_stride + n * bias.col_stride;
#pragma unroll
  for (int e = 0; e < COUNT; ++e) {
    to[e] = bias.data && e < inside ? widen<Acc>(from[e * bias.col_stride]) : Acc(0);
  }
}

// Turns the accumulators of elements (m, n) .. (m, n + COUNT - 1) of C into their values, still to be
// narrowed. Only the first `inside` of them lie in C: nothing is read for the others. n is a multiple
// of COUNT. With FUSED = false it does nothing.
template <bool FUSED, typename Out, typename Acc, int COUNT>
__device__ inline void finish(const Epilogue<Acc>& epilogue, Acc (&x)[COUNT], int64_t m, int64_t n,
                              int64_t batch, int inside = COUNT) {
  if constexpr (FUSED) {
    Out c[COUNT]{};
    if (epilogue.c_in) load_c_in(epilogue, c, m, n, batch, inside);
    scale_and_add(epilogue, x, c, m, n, inside);
    if (epilogue.bias.data) {
      Acc bias[COUNT];
      load_bias<Out>(epilogue, bias, m, n, inside);
#pragma unroll
      for (int e = 0; e < COUNT; ++e) x[e] = multiply_add(Acc(1), bias[e], x[e]);
    }
    activate(epilogue.activation, x);
  }
}

// The same for one element, narrowed.
template <bool FUSED, typename Out, typename Acc>
__device__ __forceinline__ Out finished(const Epilogue<Acc>& epilogue, Acc sum, int64_t m, int64_t n,
                               int64_t batch) {
  Acc x[1] = {sum};
  finish<FUSED, Out>(epilogue, x, m, n, batch);
  return narrow<Out>(x[0]);
}

}  // namespace tcgemm
