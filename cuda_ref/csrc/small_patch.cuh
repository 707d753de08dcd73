// What a thread of small.cu holds of an operand: how it is loaded and handed to mma.sync.
#pragma once

#include "gemv.cuh"

namespace tcgemm::sm90 {

constexpr int PATCH = 4;  // elements along M or N, and along K: 8 bytes of a row

// How an operand is read: in vectors of 8 bytes along K, or along M or N, or by elements.
enum class Access { K, MN, elements };

// A, or B by its columns: element (mn, k) is at data + mn * mn_stride + k * k_stride.
struct Side {
  const uint16_t* data;
  int64_t mn_stride, k_stride, batch_stride;
  int mn, K;
};

// 4 x 4 elements from (mn, k) on, both multiples of 4. What lies beyond K is zero; beyond M or N it is
// taken from inside the operand, since it meets no element of C.
template <Access ACCESS>
struct Patch {
  // As loaded: of Access::MN by k, else by m or n; two elements to a word.
  uint2 lines[PATCH];

  __device__ __forceinline__ void load(const Side& from, int mn, int k) {
    if constexpr (ACCESS == Access::K) {
#pragma unroll
      for (int s = 0; s < PATCH; ++s) {
        const int row = min(mn + s, from.mn - 1);
        const uint16_t* at = from.data + row * from.mn_stride + k;
        lines[s] = k < from.K ? *reinterpret_cast<const uint2*>(at) : make_uint2(0, 0);
      }
    } else if constexpr (ACCESS == Access::MN) {
      const uint16_t* at = from.data + min(mn, from.mn - PATCH);
#pragma unroll
      for (int s = 0; s < PATCH; ++s)
        lines[s] = k + s < from.K
                       ? *reinterpret_cast<const uint2*>(at + (k + s) * from.k_stride)
                       : make_uint2(0, 0);
    } else {
#pragma unroll
      for (int s = 0; s < PATCH; ++s) {
        const uint16_t* at = from.data + min(mn + s, from.mn - 1) * from.mn_stride;
        uint32_t x[PATCH];
#pragma unroll
        for (int e = 0; e < PATCH; ++e)
          x[e] = k + e < from.K ? at[(k + e) * from.k_stride] : uint16_t{0};
        lines[s] = make_uint2(x[0] | x[1] << 16, x[2] | x[3] << 16);
      }
    }
  }

  // Asks for it to be brought into the L2.
  __device__ __forceinline__ static void prefetch(const Side& from, int mn, int k) {
    if (k >= from.K) return;
#pragma unroll
    for (int s = 0; s < PATCH; ++s) {
      const int row = ACCESS == Access::MN ? min(mn, from.mn - 1) : min(mn + s, from.mn - 1);
      const int col = ACCESS == Access::MN ? min(k + s, from.K - 1) : k;
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
// from row or column 4 g and from k = 4 t on. Which k of an mma is which does not matter as long as A
// and B agree; nor which row or column, as long as D is read accordingly (see `place`).
template <typename In, Access A, Access B>
__device__ __forceinline__ void multiply(float (&d)[2][PATCH][4], const Patch<A>& a,
                                         const Patch<B>& b) {
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

// Of a lane's sums, quarter q of 8: four neighbours of row 4 g + q / 2, from column 8 t + 4 (q % 2).
__device__ __forceinline__ float4 quarter(const float (&d)[2][PATCH][4], int q) {
  const int i = q / 4, e = q / 2 % 2 * 2 + q % 2;
  return make_float4(d[i][0][e], d[i][1][e], d[i][2][e], d[i][3][e]);
}

}  // namespace tcgemm::sm90
