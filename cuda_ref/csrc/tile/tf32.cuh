// float32 operands on the tensor cores: 16 x 16 x 8 tiles of tf32 numbers.
//
// WMMA has this tile, and makes four mma.sync.m16n8k4 of it, at half the rate of two m16n8k8. So the
// fragments here are those of m16n8k8, with the names and the use of WMMA's. In lane l, with
// g = l / 4 and t = l % 4, they hold
//   A     rows g and g + 8, of each k = 2 t and 2 t + 1
//   B     columns g and g + 8, of each k = 2 t and 2 t + 1
//   sums  columns 2 t and 2 t + 1 of rows g and g + 8, then columns 2 t + 8 and 2 t + 9 of the same
// The instruction has k = t and t + 4 there. Which k meets which is all the same as long as it is so
// for A and B alike, and neighbours are one load of 8 bytes where they are stored along K.
#pragma once

#include "tile/convert.cuh"
#include "tile/fragment.cuh"

namespace tcgemm {

struct Tf32 {};

template <bool TRANSPOSED>
struct Tf32A {
  static constexpr int num_elements = 4;
  float x[4];
};

template <bool TRANSPOSED>
struct Tf32B {
  static constexpr int num_elements = 4;
  float x[4];
};

struct Tf32Sums {
  static constexpr int num_elements = 8;
  float x[8];
};

template <int M, int N, int K, bool A_T, bool B_T>
struct Fragments<M, N, K, Tf32, float, A_T, B_T> {
  using A = Tf32A<A_T>;
  using B = Tf32B<B_T>;
  using Sums = Tf32Sums;
};

// Rows (of A; columns of B) g and g + 8 of a tile in shared memory, `ld` elements from row to row as
// it is stored: along K a multiple of 8 bytes.
template <bool ALONG_K>
__device__ inline void load_rows(float (&x)[4], const float* tile, int ld) {
  const int g = threadIdx.x % 32 / 4, k = threadIdx.x % 4 * 2;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = g + 8 * h;
    if constexpr (ALONG_K) {
      const float2 two = *reinterpret_cast<const float2*>(&tile[row * ld + k]);
      x[2 * h] = two.x;
      x[2 * h + 1] = two.y;
    } else {
      x[2 * h] = tile[k * ld + row];
      x[2 * h + 1] = tile[(k + 1) * ld + row];
    }
  }
}
template <bool TRANSPOSED>
__device__ inline void load_fragment(Tf32A<TRANSPOSED>& a, const float* tile, int ld) {
  load_rows<!TRANSPOSED>(a.x, tile, ld);
}
template <bool TRANSPOSED>
__device__ inline void load_fragment(Tf32B<TRANSPOSED>& b, const float* tile, int ld) {
  load_rows<TRANSPOSED>(b.x, tile, ld);
}

__device__ inline void fill_fragment(Tf32Sums& sums, float value) {
#pragma unroll
  for (float& x : sums.x) x = value;
}

#ifndef TCGEMM_SIMULATOR

// mma.sync.m16n8k8: d += a * b. The lower 13 bits of a and b are not looked at.
__device__ inline void mma_m16n8k8_tf32(float* d, const float* a, const float* b) {
  const uint32_t *a_bits = reinterpret_cast<const uint32_t*>(a),
                 *b_bits = reinterpret_cast<const uint32_t*>(b);
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a_bits[0]), "r"(a_bits[1]), "r"(a_bits[2]), "r"(a_bits[3]), "r"(b_bits[0]),
        "r"(b_bits[1]));
}

#endif  // TCGEMM_SIMULATOR

// sums += a * b; `d` and `c` are the same.
template <typename A, typename B>
__device__ inline void mma_sync(Tf32Sums& d, const A& a, const B& b, const Tf32Sums&) {
  const float rows_within_k[4] = {a.x[0], a.x[2], a.x[1], a.x[3]};
  mma_m16n8k8_tf32(&d.x[0], rows_within_k, &b.x[0]);
  mma_m16n8k8_tf32(&d.x[4], rows_within_k, &b.x[2]);
}

__device__ inline void store_matrix_sync(float* tile, const Tf32Sums& sums, int ld,
                                         nvcuda::wmma::layout_t) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float* to = &tile[(g + i % 2 * 8) * ld + i / 2 * 8 + 2 * t];
    *reinterpret_cast<float2*>(to) = make_float2(sums.x[2 * i], sums.x[2 * i + 1]);
  }
}

// sums += a * b of float32 numbers in two parts each: x = high + low, where high is x rounded to 11
// bits and low what is left, rounded to 11 bits. high * high + high * low + low * high misses at most
// 2^-22 of a product, of either sign; a high that is cut off would leave low * low always positive.
// The tensor cores cut their sums off instead of rounding them, and that error adds up; so
// the three products start from zero and their sum is added in float32.
template <typename A, typename B>
__device__ inline void add_products(Tf32Sums& sums, const A* a, const B* b) {
  Tf32Sums products;
  fill_fragment(products, 0.0f);
  mma_sync(products, a[1], b[0], products);
  mma_sync(products, a[0], b[1], products);
  mma_sync(products, a[0], b[0], products);
#pragma unroll
  for (int e = 0; e < sums.num_elements; ++e) sums.x[e] += products.x[e];
}

// Makes what the tensor cores take of a fragment's float32 elements: tf32 numbers, rounded; or two,
// high and low. Where x is Inf or NaN, or so large that rounding makes it Inf, high is 1 with the
// sign of x and low is x: no Inf - Inf arises, and no Inf meets the low part of the other operand, so
// that Inf times Inf is Inf too.
template <Compute COMPUTE, typename Fragment>
__device__ inline void to_parts(Fragment* parts) {
  if constexpr (COMPUTE == Compute::tf32 || COMPUTE == Compute::tf32x3) {
#pragma unroll
    for (int e = 0; e < parts[0].num_elements; ++e) {
      const float x = parts[0].x[e];
      if constexpr (COMPUTE == Compute::tf32) {
        parts[0].x[e] = to_tf32(x);
      } else {
        const float high = to_tf32(x);
        const bool finite = fabsf(high) < INFINITY;
        parts[0].x[e] = finite ? high : copysignf(1.0f, x);
        parts[1].x[e] = finite ? to_tf32(x - high) : x;
      }
    }
  }
}

}  // namespace tcgemm
