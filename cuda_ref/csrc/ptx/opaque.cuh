// A number that the compiler knows nothing about.
#pragma once

#include <cstdint>

#include "host/gemm.cuh"

namespace tcgemm {

// What follows from the number is worked out from here on, by what stands there: the compiler does not
// see that it is the same as before.
__device__ __forceinline__ void make_opaque(int64_t& x) {
#ifndef TCGEMM_SIMULATOR
  asm volatile("" : "+l"(x));
#endif
}

}  // namespace tcgemm
