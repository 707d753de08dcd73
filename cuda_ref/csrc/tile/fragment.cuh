// Fragments from shared memory.
#pragma once

#include "host/select.cuh"

namespace tcgemm {

// The three fragments of an M x N x K tile of elements of type Element, summed in type Sum.
template <int M, int N, int K, typename Element, typename Sum, bool A_T, bool B_T>
struct Fragments {
  using A = nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, M, N, K, Element, Layout<A_T>>;
  using B = nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, M, N, K, Element, Layout<B_T>>;
  using Sums = nvcuda::wmma::fragment<nvcuda::wmma::accumulator, M, N, K, Sum>;
};

// wmma::load_matrix_sync for a pointer to shared memory, which is read row by row (or column by
// column): it is a multiple of their bytes in the tile, or of 32. `ld`, from row to row, is in
// elements and makes a multiple of 16 bytes.
template <typename Fragment, typename In>
__device__ inline void load_fragment(Fragment& fragment, const In* tile, int ld) {
  nvcuda::wmma::load_matrix_sync(fragment, tile, ld);
}

#ifndef TCGEMM_SIMULATOR

// For bfloat16, tf32 and float64, load_matrix_sync of CUDA 13.0 forgets that the pointer is one to
// shared memory, and reads it with generic loads of an element or two, bfloat16 with transposes in
// registers as well (LD.E and MOVM in the SASS). The instruction with its address space named becomes
// ldmatrix (LDSM) for bfloat16, as it does for float16, and shared loads (LDS) for the two others.
#define TCGEMM_LOAD(OPERAND, LAYOUT, M, N, K, IN, STORED, TYPE, WORD, REGISTERS, ...)            \
  __device__ inline void load_fragment(                                                          \
      nvcuda::wmma::fragment<nvcuda::wmma::matrix_##OPERAND, M, N, K, IN,                        \
                             nvcuda::wmma::LAYOUT##_major>& fragment,                            \
      const STORED* tile, int ld) {                                                              \
    WORD* x = reinterpret_cast<WORD*>(&fragment.x[0]);                                           \
    asm volatile("wmma.load." #OPERAND ".sync.aligned." #LAYOUT ".m" #M "n" #N "k" #K ".shared." \
                 TYPE " " REGISTERS ";\n"                                                        \
                 : __VA_ARGS__                                                                   \
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(tile))), "r"(ld)           \
                 : "memory");                                                                    \
  }
#define TCGEMM_LOAD_1(OPERAND, LAYOUT, ...) \
  TCGEMM_LOAD(OPERAND, LAYOUT, __VA_ARGS__, "{%0}, [%1], %2", "=d"(x[0]))
#define TCGEMM_LOAD_2(OPERAND, LAYOUT, ...) \
  TCGEMM_LOAD(OPERAND, LAYOUT, __VA_ARGS__, "{%0, %1}, [%2], %3", "=r"(x[0]), "=r"(x[1]))
#define TCGEMM_LOAD_4(OPERAND, LAYOUT, ...)                                          \
  TCGEMM_LOAD(OPERAND, LAYOUT, __VA_ARGS__, "{%0, %1, %2, %3}, [%4], %5", "=r"(x[0]), \
              "=r"(x[1]), "=r"(x[2]), "=r"(x[3]))
#define TCGEMM_LOAD_8(OPERAND, LAYOUT, ...)                                                     \
  TCGEMM_LOAD(OPERAND, LAYOUT, __VA_ARGS__, "{%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9",       \
              "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]), "=r"(x[4]), "=r"(x[5]), "=r"(x[6]), \
              "=r"(x[7]))
// For both operands in both layouts; A_REGISTERS and B_REGISTERS are the fragments' sizes.
#define TCGEMM_LOADS(A_REGISTERS, B_REGISTERS, ...) \
  TCGEMM_LOAD_##A_REGISTERS(a, row, __VA_ARGS__)    \
  TCGEMM_LOAD_##A_REGISTERS(a, col, __VA_ARGS__)    \
  TCGEMM_LOAD_##B_REGISTERS(b, row, __VA_ARGS__)    \
  TCGEMM_LOAD_##B_REGISTERS(b, col, __VA_ARGS__)
TCGEMM_LOADS(4, 4, 16, 16, 16, __nv_bfloat16, __nv_bfloat16, "bf16", uint32_t)
TCGEMM_LOADS(8, 2, 32, 8, 16, __nv_bfloat16, __nv_bfloat16, "bf16", uint32_t)
TCGEMM_LOADS(2, 8, 8, 32, 16, __nv_bfloat16, __nv_bfloat16, "bf16", uint32_t)
TCGEMM_LOADS(4, 4, 16, 16, 8, nvcuda::wmma::precision::tf32, float, "tf32", uint32_t)
TCGEMM_LOADS(1, 1, 8, 8, 4, double, double, "f64", double)
#undef TCGEMM_LOADS
#undef TCGEMM_LOAD_8
#undef TCGEMM_LOAD_4
#undef TCGEMM_LOAD_2
#undef TCGEMM_LOAD_1
#undef TCGEMM_LOAD

#endif  // TCGEMM_SIMULATOR

}  // namespace tcgemm
