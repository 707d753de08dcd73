// What the Hopper rungs share around their mainloops: loading a tile by TMA, storing accumulators.
#pragma once

#include "tensor_map.cuh"

namespace tcgemm::sm90 {

// One operand tile, ROWS of M or N from `mn` by 64 along K from `k`, to `shared`; its
// ROWS * 128 bytes are announced by the caller.
template <Major MAJOR, int ROWS>
__device__ __forceinline__ void load_tile(uint32_t shared, const CUtensorMap* map, uint32_t barrier,
                                          int mn, int k) {
  if constexpr (MAJOR == Major::K) {
    cp_async_bulk_tensor_2d(shared, map, barrier, k, mn);
  } else {
#pragma unroll
    for (int i = 0; i < ROWS / 64; ++i)
      cp_async_bulk_tensor_2d(shared + i * BYTES_PER_64_MN, map, barrier, mn + i * 64, k);
  }
}

// The same tile in every block of a cluster of CLUSTER: block `rank` loads its share of the rows
// and multicasts it. Each block's barrier receives all ROWS * 128 bytes.
template <Major MAJOR, int ROWS, int CLUSTER>
__device__ __forceinline__ void load_tile_multicast(uint32_t shared, const CUtensorMap* map,
                                                    uint32_t barrier, int mn, int k,
                                                    uint32_t rank) {
  constexpr int SHARE = ROWS / CLUSTER;
  constexpr int BOX = MAJOR == Major::K ? SHARE : 64;
  constexpr uint16_t EVERY_BLOCK = (1 << CLUSTER) - 1;
#pragma unroll
  for (int i = 0; i < SHARE / BOX; ++i) {
    const int row = rank * SHARE + i * BOX;
    cp_async_bulk_tensor_2d_multicast(shared + row * 128, map, barrier,
                                      MAJOR == Major::K ? k : mn + row,
                                      MAJOR == Major::K ? mn + row : k, EVERY_BLOCK);
  }
}

template <typename Out>
__device__ __forceinline__ uint32_t pack(float x, float y) {
  if constexpr (std::is_same_v<Out, __half>) {
    __half2 pair = __floats2half2_rn(x, y);
    return reinterpret_cast<uint32_t&>(pair);
  } else {
    __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    return reinterpret_cast<uint32_t&>(pair);
  }
}

template <typename Out>
__device__ __forceinline__ void store_one(Out* address, float x) {
  if constexpr (std::is_same_v<Out, float>) *address = x;
  if constexpr (std::is_same_v<Out, __half>) *address = __float2half_rn(x);
  if constexpr (std::is_same_v<Out, __nv_bfloat16>) *address = __float2bfloat16_rn(x);
}

// Stores a warpgroup's 64 x (2 * REGISTERS) accumulators with C's corner at (m, n) by plain
// stores, clipped to M and N; any strides.
template <typename Out, int REGISTERS>
__device__ __forceinline__ void store_accumulators(const PlainOutput& c, const float (&d)[REGISTERS],
                                                   int m, int n, int M, int N) {
  const int thread = threadIdx.x % 128;
  const int row = m + thread / 32 * 16 + thread % 32 / 4;
  const int col = n + thread % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t i = row + half * 8;
    if (i >= M) continue;
    Out* line = static_cast<Out*>(c.data) + i * c.row_stride;
#pragma unroll
    for (int j = 0; j < REGISTERS / 4; ++j) {
      const float x = d[4 * j + 2 * half], y = d[4 * j + 2 * half + 1];
      const int64_t k = col + 8 * j;
      if (c.pairs) {
        if (k < N) {
          if constexpr (std::is_same_v<Out, float>)
            *reinterpret_cast<float2*>(line + k) = make_float2(x, y);
          else
            *reinterpret_cast<uint32_t*>(line + k) = pack<Out>(x, y);
        }
      } else {
        if (k < N) store_one(line + k * c.col_stride, x);
        if (k + 1 < N) store_one(line + (k + 1) * c.col_stride, y);
      }
    }
  }
}

}  // namespace tcgemm::sm90
