// One row of A by a K-major B, for gemv.cu: a warp has a column of B to itself.
#pragma once

#include "tile/convert.cuh"
#include "gemv/ring.cuh"

namespace tcgemm::sm90 {

// A lane asks for CHUNKS times 16 bytes of a column at once, its warp each time for 512.
constexpr int COLUMN_WARPS = 16, CHUNKS = 4, CHUNK_BYTES = 512;
constexpr int STEP_BYTES = CHUNKS * CHUNK_BYTES, STEP_K = STEP_BYTES / 2;
constexpr int MOST_COLUMN_K = 32768;  // of a row of A in shared memory, beside the rings

// Shared memory of a block: the row of A, with zeros up to a whole step, and two steps a warp.
constexpr int column_bytes(int K) {
  return ((K - 1) / STEP_K + 1) * STEP_BYTES + COLUMN_WARPS * 2 * STEP_BYTES;
}

template <typename In>
__device__ __forceinline__ float2 two_floats(uint32_t word) {
  const In* both = reinterpret_cast<const In*>(&word);
  return make_float2(to_float(both[0]), to_float(both[1]));
}

// Calls store(sum, n) in a lane of the warp that has column n. No warp waits for another, but for
// the row of A at the start.
template <typename In, typename Store>
__device__ __forceinline__ void multiply_columns(const Operands& o, Store store) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int steps = (o.K - 1) / STEP_K + 1, apart = gridDim.x * COLUMN_WARPS;
  unsigned char* row = dynamic_shared();
  unsigned char* ring = row + (steps + 2 * warp) * STEP_BYTES + 16 * lane;
  const uint32_t row_at = shared_address(row) + 16 * lane, ring_at = shared_address(ring);

  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
  for (int k = 8 * threadIdx.x; k < steps * STEP_K; k += 8 * blockDim.x) {
    if (o.a_vectors)
      copy_unit(row + 2 * k, k < o.K ? o.a + k : o.a, o.K - k);
    else
      copy_apart(row + 2 * k, o.a + k * o.a_step, o.a_step, o.K - k);
  }
  cp_async_commit();

  const int first = blockIdx.x + gridDim.x * warp;
  int64_t next_n = first;
  int next_step = 0, next_stage = 0;
  const auto ask = [&] {
    if (next_n < o.N) {
      const int k = next_step * STEP_K + 8 * lane;
      const uint16_t* from = o.b + next_n * o.b_stride + k;
      unsigned char* to = ring + next_stage * STEP_BYTES;
#pragma unroll
      for (int i = 0; i < CHUNKS; ++i) {
        const int inside = o.K - k - 256 * i;
        copy_unit(to + i * CHUNK_BYTES, inside > 0 ? from + 256 * i : o.b, inside);
      }
      if (++next_step == steps) next_step = 0, next_n += apart;
      next_stage ^= 1;
    }
    cp_async_commit();
  };

  ask();
  cp_async_wait<1>();
  __syncthreads();  // the row is there
  uint32_t stage = 0;
  for (int64_t n = first; n < o.N; n += apart) {
    float sums[4] = {};
    for (int step = 0; step < steps; ++step) {
      ask();
      cp_async_wait<1>();
#pragma unroll
      for (int i = 0; i < CHUNKS; ++i) {
        const uint4 b = ld_shared_v4(ring_at + stage * STEP_BYTES + i * CHUNK_BYTES);
        const uint4 a = ld_shared_v4(row_at + step * STEP_BYTES + i * CHUNK_BYTES);
        const uint32_t a_words[4] = {a.x, a.y, a.z, a.w}, b_words[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 x = two_floats<In>(a_words[j]), y = two_floats<In>(b_words[j]);
          sums[j] += x.x * y.x;
          sums[j] += x.y * y.y;
        }
      }
      stage ^= 1;
    }
    float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2)
      sum += __shfl_xor_sync(0xFFFFFFFF, sum, lanes);
    if (lane == 0) store(sum, static_cast<int>(n));
  }
}

}  // namespace tcgemm::sm90
