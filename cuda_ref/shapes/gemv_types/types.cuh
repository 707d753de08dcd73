// What float32 and float64 have of their own in gemv_types.cu.
#pragma once

#include <type_traits>

#include "ptx/sm90.cuh"

namespace tcgemm::sm90 {

// Elements in a vector of 16 bytes.
template <typename Real>
constexpr int VECTOR_OF = 16 / static_cast<int>(sizeof(Real));

// Blocks for which an SM has registers, by the rows of C that a thread has.
template <typename Real, int ROWS>
constexpr int BLOCKS = sizeof(Real) == 4 ? ROWS <= 2 ? 3 : 2 : ROWS <= 4 ? 2 : 1;

// The build system compiles one type of A and B at a time. By default a build has both.
template <typename Real>
constexpr bool BUILT =
#ifdef TCGEMM_IN
    TCGEMM_IN == static_cast<int>(std::is_same_v<Real, double> ? DType::f64 : DType::f32);
#else
    true;
#endif

}  // namespace tcgemm::sm90
