// Split-K partials: float32 sums that one block stores for another in a workspace, with a flag that
// says that they are there.
//
// A workspace holds anything at first, so a flag is set by a tag that no sum looks like, of this
// launch; whoever adds the part clears it. Work of a stream is ordered, and each launch has memory
// of its own while it runs: a flag that is set was set by this launch.
#pragma once

#include <atomic>

#include "sm90/tile.cuh"

namespace tcgemm::sm90 {

// Whether a block can wait for what another one does: the simulator runs one cluster after the other.
#ifndef TCGEMM_SIMULATOR
constexpr bool BLOCKS_RUN_AT_ONCE = true;
#else
constexpr bool BLOCKS_RUN_AT_ONCE = false;
#endif

// Part i is partial_bytes / 4 sums from data + i * partial_bytes on.
struct Partials {
  char* data;
  uint64_t* flags;
  size_t partial_bytes;
  uint64_t tag;
};

inline Partials partials_in(void* workspace, int parts, size_t partial_bytes) {
  static std::atomic<uint32_t> launches{0};
  char* data = static_cast<char*>(workspace);
  // Two float32 NaN that no arithmetic makes, and a count.
  const uint64_t tag = uint64_t{0x7FA57C6B} << 32 | 0x7FA00000u | (launches++ & 0xFFFFF);
  return {data, reinterpret_cast<uint64_t*>(data + parts * partial_bytes), partial_bytes, tag};
}

// Stores the accumulators of THREADS threads as partial `index`.
template <int THREADS, int SUMS>
__device__ __forceinline__ void store_partial(const Partials& parts, int index,
                                              const float (&d)[SUMS]) {
  float4* to = reinterpret_cast<float4*>(parts.data + index * parts.partial_bytes) + threadIdx.x;
#pragma unroll
  for (int i = 0; i < SUMS / 4; ++i)
    to[i * THREADS] = make_float4(d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]);
  bar_sync(1, THREADS);
  if (threadIdx.x == 0) st_release(parts.flags + index, parts.tag);
}

// Adds part `index` when it is there, and clears its flag.
template <int THREADS, int SUMS>
__device__ __forceinline__ void add_partial(const Partials& parts, int index, float (&d)[SUMS]) {
  if (threadIdx.x == 0) {
    while (ld_acquire(parts.flags + index) != parts.tag) {
    }
    parts.flags[index] = 0;
  }
  bar_sync(1, THREADS);
  const float4* from =
      reinterpret_cast<const float4*>(parts.data + index * parts.partial_bytes) + threadIdx.x;
#pragma unroll
  for (int i = 0; i < SUMS / 4; ++i) {
    const float4 part = __ldcg(from + i * THREADS);
    d[4 * i] += part.x, d[4 * i + 1] += part.y, d[4 * i + 2] += part.z, d[4 * i + 3] += part.w;
  }
}

}  // namespace tcgemm::sm90
