// The multiply of a warp below WMMA: ldmatrix and mma.sync, each wrapper named after its
// instruction. In lane l, with g = l / 4 and t = l % 4.
#pragma once

#include <type_traits>

#include "host/gemm.cuh"

namespace tcgemm {

#ifndef TCGEMM_SIMULATOR

// The compiler works out again in every pass of a loop what it sees to be cheap. This it does not
// see.
__device__ __forceinline__ void keep_in_register(int& x) { asm volatile("" : "+r"(x)); }

// Four 8 x 8 matrices of 16-bit elements. Lanes 8 i .. 8 i + 7 give the addresses of the 16-byte
// rows of matrix i. A lane receives elements 2 t and 2 t + 1 of row g of each, or with TRANSPOSED
// of column g.
template <bool TRANSPOSED>
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&m)[4], uint32_t shared) {
  if constexpr (TRANSPOSED) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(shared)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(shared)
                 : "memory");
  }
}

// D[16, 8] += A[16, 16] B[16, 8], summed in float32. The registers of A are the 8 x 8 matrices at
// (m, k) = (0, 0), (8, 0), (0, 8), (8, 8), elements along k in a register; those of B are at
// (k, n) = (0, 0), (8, 0), likewise; D has columns 2 t and 2 t + 1 of rows g and g + 8.
template <typename In>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
  if constexpr (std::is_same_v<In, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// D[16, 8] += A[16, 8] B[8, 8] in float64. a[2 q + h] is (m, k) = (g + 8 h, 4 q + t), b[q] is (k, n) =
// (4 q + t, g). GPUs before sm_90 have the m8n8k4 alone, four of which it is.
__device__ __forceinline__ void mma_m16n8k8_f64(double (&d)[4], const double (&a)[4],
                                                const double (&b)[2]) {
#if __CUDA_ARCH__ >= 900
  asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#else
#pragma unroll
  for (int q = 0; q < 2; ++q) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};\n"
          : "+d"(d[2 * h]), "+d"(d[2 * h + 1])
          : "d"(a[2 * q + h]), "d"(b[q]));
    }
  }
#endif
}

#endif  // TCGEMM_SIMULATOR

}  // namespace tcgemm
