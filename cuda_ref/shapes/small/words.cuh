// small.cu where rows are words of 8 or 4 bytes: each warp loads its part of K straight into the
// registers that mma.sync wants, and the warps' sums meet in shared memory.
#pragma once

#include "sm90/reduce.cuh"
#include "small/operand.cuh"
#include "ptx/mma.cuh"
#include "ptx/sm90.cuh"

namespace tcgemm::sm90 {

constexpr int STEP_K = 16;    // of an mma
constexpr int PATCH = 4;      // elements along M or N, and along K
constexpr int IN_FLIGHT = 2;  // steps that a warp loads at once
constexpr int GROUPS = 8;     // of a lane's 32 accumulators, four neighbours each

// Of two words that hold two elements of two rows of k each, the first or the second of both.
__device__ __forceinline__ uint32_t even(uint32_t k0, uint32_t k1) {
  return __byte_perm(k0, k1, 0x5410);
}
__device__ __forceinline__ uint32_t odd(uint32_t k0, uint32_t k1) {
  return __byte_perm(k0, k1, 0x7632);
}

// Four neighbours, at a multiple of BYTES, in words of as many; zeros from `inside` on, which
// divides no word.
template <int BYTES>
__device__ __forceinline__ uint2 load_line(const uint16_t* from, int inside) {
  if constexpr (BYTES == 8) {
    return inside > 0 ? *reinterpret_cast<const uint2*>(from) : make_uint2(0, 0);
  } else {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(from);
    return make_uint2(inside > 0 ? words[0] : 0, inside > 2 ? words[1] : 0);
  }
}

// 4 x 4 elements from (mn, k) on, both multiples of 4. What lies beyond K is zero; beyond M or N it
// is zero or taken from inside the operand, since it meets no element of C.
template <Access ACCESS, int BYTES>
struct Patch {
  // As loaded: of Access::MN by k, else by m or n; two elements to a word.
  uint2 lines[PATCH];

  __device__ __forceinline__ void load(const Side& from, int mn, int k) {
#pragma unroll
    for (int s = 0; s < PATCH; ++s) {
      if constexpr (ACCESS == Access::MN) {
        lines[s] = load_line<BYTES>(from.data + mn + (k + s) * from.k_stride,
                                    k + s < from.K ? from.mn - mn : 0);
      } else {
        const uint16_t* at = from.data + min(mn + s, from.mn - 1) * from.mn_stride;
        lines[s] = load_line<BYTES>(at + k, from.K - k);
      }
    }
  }

  // Asks for it to be brought into the L2.
  __device__ __forceinline__ static void prefetch(const Side& from, int mn, int k) {
    if (k >= from.K) return;
#pragma unroll
    for (int s = 0; s < PATCH; ++s) {
      const int row = min(ACCESS == Access::MN ? mn : mn + s, from.mn - 1);
      const int col = min(ACCESS == Access::MN ? k + s : k, from.K - 1);
      prefetch_global_l2(from.data + row * from.mn_stride + col * from.k_stride);
    }
  }

  // The elements of row `s` along K, two to a word.
  __device__ __forceinline__ uint2 row(int s) const {
    if constexpr (ACCESS == Access::MN) {
      uint32_t x[PATCH];
#pragma unroll
      for (int k = 0; k < PATCH; ++k) x[k] = s < 2 ? lines[k].x : lines[k].y;
      return s % 2 == 0 ? make_uint2(even(x[0], x[1]), even(x[2], x[3]))
                        : make_uint2(odd(x[0], x[1]), odd(x[2], x[3]));
    } else {
      return lines[s];
    }
  }
};

// D[32, 32] += A[32, 16] B[16, 32] from the patches of a warp's lanes. Lane l = 4 g + t has those
// from row or column 4 g and from k = 4 t on. Which k of an mma is which does not matter as long as
// A and B agree; nor which row or column, as long as D is read accordingly.
template <typename In, typename A, typename B>
__device__ __forceinline__ void multiply(float (&d)[2][PATCH][4], const A& a, const B& b) {
#pragma unroll
  for (int j = 0; j < PATCH; ++j) {
    const uint2 column = b.row(j);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint2 low = a.row(2 * i), high = a.row(2 * i + 1);
      mma_m16n8k16<In>(d[i][j], {low.x, high.x, low.y, high.y}, column.x, column.y);
    }
  }
}

// Of a lane's accumulators, group q of 8: four neighbours of row 4 g + q / 2, from column
// 8 t + 4 (q % 2).
__device__ __forceinline__ float4 group_of_four(const float (&d)[2][PATCH][4], int q) {
  const int i = q / 4, e = q / 2 % 2 * 2 + q % 2;
  return make_float4(d[i][0][e], d[i][1][e], d[i][2][e], d[i][3][e]);
}

// C's tile at (m, n) of matrix `batch`, from words of BYTES.
template <bool FUSED, typename In, typename Out, Access A, Access B, int BYTES>
__device__ __forceinline__ void multiply_words(const Side& a, const Side& b, const Rows& c,
                                               const Epilogue<float>& epilogue, int m, int n,
                                               int batch) {
  using APatch = Patch<A, BYTES>;
  using BPatch = Patch<B, BYTES>;
  float4* const sums = reinterpret_cast<float4*>(dynamic_shared());
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const int a_row = m + PATCH * g, b_row = n + PATCH * g;

  const int steps = (a.K - 1) / STEP_K + 1;
#pragma unroll
  for (int i = 0; i < IN_FLIGHT; ++i) {
    const int k = (warp + i * warps) * STEP_K + PATCH * t;
    APatch::prefetch(a, a_row, k);
    BPatch::prefetch(b, b_row, k);
  }
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();  // not before, or several kernels wait beside each other

  float d[2][PATCH][4] = {};
  for (int step = warp; step < steps; step += IN_FLIGHT * warps) {
    APatch a_patches[IN_FLIGHT];
    BPatch b_patches[IN_FLIGHT];
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; ++i) {
      const int k = (step + i * warps) * STEP_K + PATCH * t;
      a_patches[i].load(a, a_row, k);
      b_patches[i].load(b, b_row, k);
    }
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; ++i) multiply<In>(d, a_patches[i], b_patches[i]);
  }

  // Where there are more warps than steps the others help to store C.
  const int parts = min(warps, steps);
  if (warp < parts) {
#pragma unroll
    for (int q = 0; q < GROUPS; ++q) sums[(warp * GROUPS + q) * 32 + lane] = group_of_four(d, q);
  }
  __syncthreads();
  for (int q = warp; q < GROUPS; q += warps) {
    float x[4] = {};
    for (int w = 0; w < parts; ++w) {
      const float4 part = sums[(w * GROUPS + q) * 32 + lane];
      x[0] += part.x, x[1] += part.y, x[2] += part.z, x[3] += part.w;
    }
    const int row = m + PATCH * g + q / 2, col = n + 8 * t + 4 * (q % 2);
    const int inside = min(c.cols - col, 4);
    if (row >= c.rows || inside <= 0) continue;
    finish<FUSED, Out>(epilogue, x, row, col, batch, inside);
    store_neighbours<Out>(c, x, row, col, inside);
  }
}

}  // namespace tcgemm::sm90
