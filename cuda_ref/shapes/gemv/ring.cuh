// A warp's stage of B in gemv.cu: how it is brought to shared memory, and multiplied from there.
#pragma once

#include "ptx/cp_async.cuh"
#include "ptx/mma.cuh"
#include "ptx/sm90.cuh"

namespace tcgemm::sm90 {

// A stage's lines of B are 16 of 256 bytes, as it is stored: columns with 128 of k each (K_MAJOR),
// or 16 of k with 128 columns each. Unit u of 16 bytes of line l lies at u ^ (4 (l % 2) + l / 4),
// so that what eight lanes read at once, below, lies in different banks. Behind them stands what
// rows of A have for the same k: lines of their own, likewise, or all in one.
constexpr int LINES = 16, UNITS = 16, LINE_BYTES = 16 * UNITS;

__device__ __forceinline__ int swizzle(int line) { return 4 * (line % 2) + line / 4; }

struct Operands {
  const uint16_t *a, *b;
  // Elements between rows of A, between its neighbours along K, and between lines of B.
  int64_t a_stride, a_step, b_stride;
  int64_t a_batch, b_batch;
  bool a_vectors;  // of 16 bytes, along the rows of A
  int M, N, K;
};

// Asks for 8 elements, of which `inside` exist; zeros for the others.
__device__ __forceinline__ void copy_unit(unsigned char* to, const uint16_t* from, int inside) {
  cp_async_16(to, from, 2 * min(max(inside, 0), 8));
}

// The same of elements `step` apart, at once.
__device__ __forceinline__ void copy_apart(unsigned char* to, const uint16_t* from, int64_t step,
                                           int inside) {
#pragma unroll 1
  for (int e = 0; e < 8; ++e)
    reinterpret_cast<uint16_t*>(to)[e] = e < inside ? from[e * step] : uint16_t{0};
}

// Of a warp; in its lane l, with g = l / 4 and t = l % 4. Which k of an mma is which does not matter
// as long as A and B agree: a lane has neighbours along a row of A.
template <bool K_MAJOR>
struct Stage {
  static constexpr int COLS = K_MAJOR ? LINES : 8 * UNITS, DEPTH = K_MAJOR ? 8 * UNITS : LINES;
  static constexpr int TILES = COLS / 16;  // of 16 columns, the rows of an mma
  static constexpr int UNITS_OF_A = DEPTH / 8;

  static __host__ __device__ constexpr int bytes(int rows) {
    return LINES * LINE_BYTES + (K_MAJOR ? rows : 1) * LINE_BYTES;
  }

  // Columns `n` to n + COLS and k to k + DEPTH of B, of which `columns` and `depth` exist. Beyond
  // them comes zero, or a column that does.
  static __device__ __forceinline__ void copy_b(unsigned char* to, const uint16_t* b,
                                                int64_t stride, int n, int k, int columns,
                                                int depth) {
    const int lane = threadIdx.x % 32, half = lane / UNITS, unit = lane % UNITS;
    const int lines = K_MAJOR ? columns : depth, along = K_MAJOR ? depth : columns;
    const uint16_t* from = b + (K_MAJOR ? n : k) * stride + (K_MAJOR ? k : n) + 8 * unit;
    to += half * LINE_BYTES;
    const int place = (unit ^ swizzle(half)) * 16;  // of lines 0 and 1
    if (lines >= LINES && along >= 8 * UNITS) {
      from += half * stride;
#pragma unroll
      for (int i = 0; i < LINES / 2; ++i, from += 2 * stride)
        cp_async_16(to + 2 * i * LINE_BYTES + (place ^ i / 2 * 16), from);
    } else {
#pragma unroll 1
      for (int i = 0; i < LINES / 2; ++i) {
        const int line = K_MAJOR ? min(2 * i + half, lines - 1) : 2 * i + half;
        const int inside = line < lines ? along - 8 * unit : 0;
        copy_unit(to + 2 * i * LINE_BYTES + (place ^ i / 2 * 16),
                  inside > 0 ? from + line * stride : b, inside);
      }
    }
  }

  // `rows` rows of A at k to k + DEPTH, with zeros beyond K.
  static __device__ __forceinline__ void copy_a(unsigned char* to, const Operands& o,
                                                const uint16_t* a, int rows, int k) {
    const int unit = threadIdx.x % UNITS_OF_A, inside = o.K - k - 8 * unit;
    to += LINES * LINE_BYTES;
    for (int row = threadIdx.x % 32 / UNITS_OF_A; row < rows; row += 32 / UNITS_OF_A) {
      const uint16_t* from = a + row * o.a_stride + (k + 8 * unit) * o.a_step;
      unsigned char* there =
          to + (K_MAJOR ? row * LINE_BYTES + (unit ^ swizzle(row)) * 16 : (2 * row + unit) * 16);
      if (o.a_vectors)
        copy_unit(there, inside > 0 ? from : a, inside);
      else
        copy_apart(there, from, o.a_step, inside);
    }
  }

  // Of tile j, row r of d is column 16 j + r of the stage and column c of it row c of A.
  template <typename In>
  static __device__ __forceinline__ void multiply(float (&d)[TILES][4], uint32_t stage, int rows) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t a_at = stage + LINES * LINE_BYTES;
    if constexpr (K_MAJOR) {
      const uint32_t line = g * LINE_BYTES, place = (t ^ swizzle(g)) * 16;
#pragma unroll
      for (int i = 0; i < DEPTH / 32; ++i) {
        const uint32_t at = line + (place ^ i * 64), below = 8 * LINE_BYTES;
        const uint4 a = g < rows ? ld_shared_v4(a_at + at) : make_uint4(0, 0, 0, 0);
        const uint4 low = ld_shared_v4(stage + at), high = ld_shared_v4(stage + (at ^ 32) + below);
        mma_m16n8k16<In>(d[0], {low.x, high.x, low.y, high.y}, a.x, a.y);
        mma_m16n8k16<In>(d[0], {low.z, high.z, low.w, high.w}, a.z, a.w);
      }
    } else {
      const uint32_t a_low = g < rows ? ld_shared_u32(a_at + g * 32 + t * 8) : 0;
      const uint32_t a_high = g < rows ? ld_shared_u32(a_at + g * 32 + t * 8 + 4) : 0;
      // Rows 2 t and 2 t + 1 of an 8 x 8 matrix are k of 4 t and 4 t + 1, or 2 more.
      const int matrix = lane / 8, row = lane % 8, k = 4 * (row / 2) + row % 2 + 2 * (matrix / 2);
      const uint32_t line = stage + k * LINE_BYTES, place = (matrix % 2 ^ swizzle(k)) * 16;
#pragma unroll
      for (int j = 0; j < TILES; ++j) {
        uint32_t b[4];
        ldmatrix_x4<true>(b, line + (place ^ j * 32));
        mma_m16n8k16<In>(d[j], b, a_low, a_high);
      }
    }
  }
};

}  // namespace tcgemm::sm90
