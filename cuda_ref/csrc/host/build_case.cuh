// What a build of a rung for 16-bit types is for: the build system compiles one type of A and B at a
// time, with what is fused or without. By default a build has all of it.
#pragma once

#include <type_traits>

#include "host/gemm.cuh"

namespace tcgemm {

template <typename In, bool PLAIN>
constexpr bool BUILT =
#ifdef TCGEMM_IN
    PLAIN == TCGEMM_PLAIN &&
    TCGEMM_IN == static_cast<int>(std::is_same_v<In, __half> ? DType::f16 : DType::bf16);
#else
    true;
#endif

}  // namespace tcgemm
