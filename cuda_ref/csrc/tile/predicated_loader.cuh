// Checked copies of tiles from global to shared memory: any size, stride and alignment.
#pragma once

#include "tile/convert.cuh"
#include "ptx/cp_async.cuh"
#include "host/select.cuh"

namespace tcgemm {

// A or B in its storage order: `inner` is the dimension along which elements are neighbours, if
// they are along any. `vectors`: every row begins at a multiple of 16 bytes.
struct Operand {
  const void* data;
  int64_t outer, inner;
  int64_t outer_stride, inner_stride;
  int64_t batch_stride;
  bool vectors;
};

inline Operand operand(const Matrix& matrix, int64_t batch, int64_t element_bytes) {
  Operand result = {matrix.data,       matrix.rows,         matrix.cols, matrix.row_stride,
                    matrix.col_stride, matrix.batch_stride, false};
  if (column_major(matrix)) {
    std::swap(result.outer, result.inner);
    std::swap(result.outer_stride, result.inner_stride);
  }
  result.vectors = rows_aligned(result.data, result.outer, result.outer_stride,
                                result.inner_stride, element_bytes) &&
                   (batch == 1 || result.batch_stride * element_bytes % 16 == 0);
  return result;
}

__device__ inline int clamp(int64_t x, int high) {
  return static_cast<int>(x < 0 ? 0 : x < high ? x : high);
}

// Copies the OUTER x INNER part at (outer0, inner0) of matrix `data` to rows WIDTH elements apart,
// zeros outside the operand. The caller commits the cp.async group and meets the barrier that
// follows. A thread stays in its column, so all that changes from copy to copy is the row.
template <int THREADS, int OUTER, int INNER, int WIDTH, typename In>
__device__ void copy_tile(In* tile, const Operand& from, const In* data, int64_t outer0,
                          int64_t inner0) {
  constexpr int VECTOR = 16 / sizeof(In);
  static_assert(THREADS % INNER == 0 && OUTER * INNER % (THREADS * VECTOR) == 0);
  static_assert(WIDTH * sizeof(In) % 16 == 0);
  const int rows = clamp(from.outer - outer0, OUTER);
  data += outer0 * from.outer_stride;
  if (from.vectors) {
    constexpr int ROWS = THREADS * VECTOR / INNER;
    const int row = threadIdx.x * VECTOR / INNER;
    const int col = threadIdx.x * VECTOR % INNER;
    const int cols = clamp(from.inner - inner0 - col, VECTOR);
    const In* source = data + row * from.outer_stride + inner0 + col;
    In* to = &tile[row * WIDTH + col];
    if (rows == OUTER && from.inner - inner0 >= INNER) {
#pragma unroll
      for (int i = 0; i < OUTER; i += ROWS, source += ROWS * from.outer_stride) {
        cp_async_16(to + i * WIDTH, source);
      }
      return;
    }
#pragma unroll 1
    for (int i = 0; i < OUTER; i += ROWS, source += ROWS * from.outer_stride) {
      const int inside = row + i < rows ? cols : 0;
      if (inside == VECTOR) cp_async_16(to + i * WIDTH, source);
      for (int e = 0; e < VECTOR && inside < VECTOR; ++e) {
        to[i * WIDTH + e] = e < inside ? source[e] : zero<In>();
      }
    }
  } else {
    constexpr int ROWS = THREADS / INNER;
    const int row = threadIdx.x / INNER;
    const int col = threadIdx.x % INNER;
    const bool inside = inner0 + col < from.inner;
    const In* source = data + row * from.outer_stride + (inner0 + col) * from.inner_stride;
#pragma unroll 8
    for (int i = 0; i < OUTER; i += ROWS) {
      tile[(row + i) * WIDTH + col] = inside && row + i < rows ? *source : zero<In>();
      source += ROWS * from.outer_stride;
    }
  }
}

}  // namespace tcgemm
