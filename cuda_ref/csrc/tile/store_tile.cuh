// From a tile of sums in shared memory to C: the epilogue of kernels that stage their sums there.
#pragma once

#include "tile/epilogue.cuh"

namespace tcgemm {

// Reads COUNT neighbours in shared memory from a multiple of 16 bytes on.
template <int COUNT, typename Sum>
__device__ inline void load_shared(Sum (&to)[COUNT], const Sum* from) {
  constexpr int WORDS = COUNT * sizeof(Sum) / 16;
  static_assert(WORDS * 16 == COUNT * sizeof(Sum));
  union {
    Sum elements[COUNT];
    uint4 words[WORDS];
  } packed{};
#pragma unroll
  for (int w = 0; w < WORDS; ++w) packed.words[w] = reinterpret_cast<const uint4*>(from)[w];
#pragma unroll
  for (int e = 0; e < COUNT; ++e) to[e] = packed.elements[e];
}

// The same the other way.
template <int COUNT, typename Sum>
__device__ inline void store_shared(Sum* to, const Sum (&from)[COUNT]) {
  constexpr int WORDS = COUNT * sizeof(Sum) / 16;
  union {
    Sum elements[COUNT];
    uint4 words[WORDS];
  } packed{};
#pragma unroll
  for (int e = 0; e < COUNT; ++e) packed.elements[e] = from[e];
#pragma unroll
  for (int w = 0; w < WORDS; ++w) reinterpret_cast<uint4*>(to)[w] = packed.words[w];
}

// store_tile where vectors do not reach: neighbouring threads store neighbouring elements of a row, so
// that a warp's store is two or three sectors, where vectors taken apart would touch one a lane.
template <bool FUSED, int THREADS, int BLOCK_M, int BLOCK_N, int LD, typename Out, typename Sum,
          typename Acc>
__device__ void store_elements(const Sum* tile, const Matrix& c, const Epilogue<Acc>& epilogue,
                               int64_t m0, int64_t n0, int64_t batch) {
  constexpr int WIDTH = THREADS < BLOCK_N ? THREADS : BLOCK_N, STEP = THREADS / WIDTH;
  const int first = threadIdx.x / WIDTH;
  const int rows = c.rows - m0 < BLOCK_M ? static_cast<int>(c.rows - m0) : BLOCK_M;
  for (int col = threadIdx.x % WIDTH; col < BLOCK_N && n0 + col < c.cols; col += WIDTH) {
    Out* to = static_cast<Out*>(c.data) + batch * c.batch_stride + (m0 + first) * c.row_stride +
              (n0 + col) * c.col_stride;
#pragma unroll 8
    for (int row = first; row < rows; row += STEP, to += STEP * c.row_stride) {
      Acc x[1] = {widen<Acc>(tile[row * LD + col])};
      if constexpr (FUSED) {
        Out c_in[1]{};
        if (epilogue.c_in) load_c_in(epilogue, c_in, m0 + row, n0 + col, batch, 1);
        scale_and_add(epilogue, x, c_in, m0 + row, n0 + col, 1);
        Acc bias[1];
        load_bias<Out>(epilogue, bias, m0 + row, n0 + col, 1);
        if (epilogue.bias.data) x[0] = multiply_add(Acc(1), bias[0], x[0]);
        activate(epilogue.activation, x);
      }
      *to = narrow<Out>(x[0]);
    }
  }
}

// Stores the inside of a BLOCK_M x BLOCK_N tile of sums at (m0, n0) of matrix `batch` of C. The sums
// are in shared memory, in rows LD apart that begin at multiples of 16 bytes. `vectors`: the same
// holds of the rows of C, and each thread keeps to its own columns; else see store_elements.
template <bool FUSED, int THREADS, int BLOCK_M, int BLOCK_N, int LD, typename Out, typename Sum,
          typename Acc>
__device__ void store_tile(Sum* tile, const Matrix& c, bool vectors, const Epilogue<Acc>& epilogue,
                           int64_t m0, int64_t n0, int64_t batch) {
  if (!vectors) {
    store_elements<FUSED, THREADS, BLOCK_M, BLOCK_N, LD, Out>(tile, c, epilogue, m0, n0, batch);
    return;
  }
  constexpr int COUNT = 16 / sizeof(Out);
  constexpr int ROWS = THREADS * COUNT / BLOCK_N;  // in one pass of all threads
  constexpr int PASSES = BLOCK_M / ROWS, IN_FLIGHT = PASSES < 4 ? PASSES : 4;
  static_assert(THREADS * COUNT % BLOCK_N == 0 && BLOCK_M % (ROWS * IN_FLIGHT) == 0);
  const int first = threadIdx.x * COUNT / BLOCK_N;
  const int col = threadIdx.x * COUNT % BLOCK_N;
  const int rows = c.rows - m0 < BLOCK_M ? static_cast<int>(c.rows - m0) : BLOCK_M;
  const int64_t cols = c.cols - n0 - col;
  const int inside = cols < COUNT ? (cols < 0 ? 0 : static_cast<int>(cols)) : COUNT;
  Out* data = static_cast<Out*>(c.data) + batch * c.batch_stride + m0 * c.row_stride +
              (n0 + col) * c.col_stride;
  // C_in is added in the tile beforehand, so that IN_FLIGHT loads of it are on their way at once. Sums in
  // float16 have no room for that.
  bool added = false;
  if constexpr (FUSED && std::is_same_v<Sum, Acc>) {
    added = epilogue.c_in;
    for (int row = first; added && row < rows; row += IN_FLIGHT * ROWS) {
      Out c_in[IN_FLIGHT][COUNT]{};
#pragma unroll
      for (int i = 0; i < IN_FLIGHT; ++i) {
        const int64_t m = m0 + row + i * ROWS;
        if (m < c.rows) load_c_in(epilogue, c_in[i], m, n0 + col, batch, inside);
      }
#pragma unroll
      for (int i = 0; i < IN_FLIGHT; ++i) {
        Acc x[COUNT];
        const int r = row + i * ROWS;
        load_shared(x, &tile[r * LD + col]);
        scale_and_add(epilogue, x, c_in[i], m0 + r, n0 + col, r < rows ? inside : 0);
        store_shared(&tile[r * LD + col], x);
      }
    }
  }
  // A bias along the row stays the same from pass to pass.
  Acc bias[COUNT];
  const bool along_row = FUSED && epilogue.bias.row_stride == 0;
  if constexpr (FUSED) load_bias<Out>(epilogue, bias, m0, n0 + col, along_row ? inside : 0);
#pragma unroll 2
  for (int row = first; row < rows; row += ROWS) {
    Sum sums[COUNT];
    load_shared(sums, &tile[row * LD + col]);
    Acc x[COUNT];
#pragma unroll
    for (int e = 0; e < COUNT; ++e) x[e] = widen<Acc>(sums[e]);
    if constexpr (FUSED) {
      if (!added) {
        Out c_in[COUNT]{};
        if (epilogue.c_in) load_c_in(epilogue, c_in, m0 + row, n0 + col, batch, inside);
        scale_and_add(epilogue, x, c_in, m0 + row, n0 + col, inside);
      }
      if (!along_row) load_bias<Out>(epilogue, bias, m0 + row, n0 + col, inside);
      if (epilogue.bias.data) {
#pragma unroll
        for (int e = 0; e < COUNT; ++e) x[e] = multiply_add(Acc(1), bias[e], x[e]);
      }
      activate(epilogue.activation, x);
    }
    if (inside == COUNT) {
      store_narrowed(&data[row * c.row_stride], x);
    } else {
      for (int e = 0; e < COUNT; ++e) {
        if (e < inside) data[row * c.row_stride + e * c.col_stride] = narrow<Out>(x[e]);
      }
    }
  }
}

}  // namespace tcgemm
