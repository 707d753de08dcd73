// Fragments from shared memory.
#pragma once

#include "gemm.cuh"

namespace tcgemm {

// wmma::load_matrix_sync for a pointer to shared memory. `tile` is a multiple of 32 bytes, `ld` (in
// elements, from row to row or column to column) a multiple of 8.
template <typename Fragment, typename In>
__device__ inline void load_fragment(Fragment& fragment, const In* tile, int ld) {
  nvcuda::wmma::load_matrix_sync(fragment, tile, ld);
}

#ifndef TCGEMM_SIMULATOR

// For bfloat16, load_matrix_sync of CUDA 13.0 forgets that the pointer is one to shared memory, and
// reads it with 32-bit generic loads and transposes in registers (LD.E and MOVM in the SASS). The
// instruction with its address space named becomes ldmatrix (LDSM), as it does for float16.
#define TCGEMM_LOAD_BF16(OPERAND, SHORT, LAYOUT, SHORT_LAYOUT)                                    \
  __device__ inline void load_fragment(                                                           \
      nvcuda::wmma::fragment<nvcuda::wmma::OPERAND, 16, 16, 16, __nv_bfloat16,                    \
                             nvcuda::wmma::LAYOUT>& fragment,                                     \
      const __nv_bfloat16* tile, int ld) {                                                        \
    uint32_t* words = reinterpret_cast<uint32_t*>(&fragment.x[0]);                                \
    asm volatile("wmma.load." SHORT ".sync.aligned." SHORT_LAYOUT                                 \
                 ".m16n16k16.shared.bf16 {%0, %1, %2, %3}, [%4], %5;\n"                           \
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])                 \
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(tile))), "r"(ld)            \
                 : "memory");                                                                     \
  }
TCGEMM_LOAD_BF16(matrix_a, "a", row_major, "row")
TCGEMM_LOAD_BF16(matrix_a, "a", col_major, "col")
TCGEMM_LOAD_BF16(matrix_b, "b", row_major, "row")
TCGEMM_LOAD_BF16(matrix_b, "b", col_major, "col")
#undef TCGEMM_LOAD_BF16

#endif  // TCGEMM_SIMULATOR

}  // namespace tcgemm
