// Arithmetic of one instruction, named after it.
#pragma once

#ifdef __CUDACC__  // the simulator has these names in hopper.hpp

namespace tcgemm::sm90 {

// The larger one; NaN if either is.
__device__ __forceinline__ float max_nan(float x, float y) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(x), "f"(y));
  return larger;
}

// 2^x, with 2 units in the last place.
__device__ __forceinline__ float ex2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x, with 1 unit in the last place; 0 where that is subnormal.
__device__ __forceinline__ float rcp_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace tcgemm::sm90

#endif
