// The multiply of a warp below WMMA: ldmatrix and mma, each wrapper named after its instruction.
#pragma once

#include "gemm.cuh"

#include <type_traits>

namespace tcgemm {

// Four 8 x 8 matrices of 16-bit elements. Lanes 8 i .. 8 i + 7 give the addresses of the 16-byte
// rows of matrix i; lane l receives elements 2 (l % 4) and the next of row l / 4 of each matrix, or
// with TRANSPOSED of its column l / 4.
template <bool TRANSPOSED>
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&m)[4], uint32_t shared) {
  if constexpr (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(shared)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(shared)
                 : "memory");
}

// D[16, 8] += A[16, 16] B[16, 8]. Registers of A: the 8 x 8 matrices at (m, k) = (0, 0), (8, 0),
// (0, 8), (8, 8); of B: at (k, n) = (0, 0), (8, 0), given by columns.
template <typename In>
__device__ __forceinline__ void mma_m16n8k16(float* d, const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
  if constexpr (std::is_same_v<In, __half>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace tcgemm
