// tile/tf32_terms.cuh of a stage of B in shared memory.
#pragma once

#include "ptx/sm90.cuh"
#include "tile/tf32_terms.cuh"

namespace tcgemm::sm90 {

// Splits BYTES of shared memory at `tile`, by THREADS threads of which this is number `thread`: they
// become hi, and lo is written BYTES behind them. Element by element, so any swizzle stays as it is.
// All of a thread's loads are in flight at once, since the way through shared memory is long where
// the tensor cores read too. Hazard: for wgmma to see what is written, each thread must run
// fence_proxy_async before it says that it is done.
template <uint32_t BYTES, uint32_t THREADS>
__device__ __forceinline__ void split_float32(uint32_t tile, uint32_t thread) {
  constexpr uint32_t COUNT = (BYTES / 16 - 1) / THREADS + 1;  // vectors of a thread
  const auto address = [&](uint32_t i) { return tile + (thread + i * THREADS) * 16; };
  const auto exists = [&](uint32_t i) { return thread + i * THREADS < BYTES / 16; };
  uint4 x[COUNT];
#pragma unroll
  for (uint32_t i = 0; i < COUNT; ++i)
    x[i] = exists(i) ? ld_shared_v4(address(i)) : make_uint4(0, 0, 0, 0);
  float sum = 0;
#pragma unroll
  for (uint32_t i = 0; i < COUNT; ++i) {
    const uint4 hi =
        make_uint4(x[i].x + ROUNDED, x[i].y + ROUNDED, x[i].z + ROUNDED, x[i].w + ROUNDED);
    const float rests[4] = {remainder(x[i].x, hi.x), remainder(x[i].y, hi.y),
                            remainder(x[i].z, hi.z), remainder(x[i].w, hi.w)};
    sum += (rests[0] + rests[1]) + (rests[2] + rests[3]);
    if (!exists(i)) continue;
    st_shared_v4(address(i), hi);
    st_shared_v4(address(i) + BYTES, make_uint4(low_part(rests[0]), low_part(rests[1]),
                                                low_part(rests[2]), low_part(rests[3])));
  }
  if (sum - sum == 0) return;
#pragma unroll 1
  for (uint32_t i = 0; exists(i); ++i) {
    uint4 hi = ld_shared_v4(address(i));
    hi = make_uint4(hi.x - ROUNDED, hi.y - ROUNDED, hi.z - ROUNDED, hi.w - ROUNDED);
    const uint4 lo = make_uint4(split_any<ROUNDED>(hi.x), split_any<ROUNDED>(hi.y),
                                split_any<ROUNDED>(hi.z), split_any<ROUNDED>(hi.w));
    st_shared_v4(address(i), hi);
    st_shared_v4(address(i) + BYTES, lo);
  }
}

}  // namespace tcgemm::sm90
