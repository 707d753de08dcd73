// One tile of C summed over the blocks of a cluster, each of which has multiplied its part of K.
//
// Every block stores its float32 partial sums in its own shared memory; block r finishes every
// cluster-th part of the rows. It is sent that part by the others, block by block in turn so that no block is
// asked by all at once, and adds them in the order of the ranks, which is the order of K: the bits
// depend on no timing.
#pragma once

#include "tile/epilogue.cuh"
#include "sm90/tile.cuh"

namespace tcgemm::sm90 {

// Calls copy(offset in shared memory, inner, outer) for each box of a tile, as load_tile has them.
template <Major MAJOR, int ROWS, typename Copy>
__device__ __forceinline__ void each_box(int mn, int k, Copy copy) {
  if constexpr (MAJOR == Major::K) {
    copy(0, k, mn);
  } else {
#pragma unroll
    for (int i = 0; i < ROWS / 64; ++i) copy(i * BYTES_PER_64_MN, mn + i * 64, k);
  }
}

// C by rows of neighbours where it has them: element (i, j) is at data + i * row_stride +
// j * col_stride. With `vectors`, four neighbours (of float64 two) from a multiple of four (of two)
// on are one word.
struct Rows {
  void* data;
  int64_t row_stride, col_stride;
  int rows, cols;
  bool vectors;
};

inline Rows rows_of(const Matrix& c, DType type) {
  const int64_t count = type == DType::f64 ? 2 : 4;
  const uint64_t word = count * bytes_of(type);
  return {c.data, c.row_stride, c.col_stride, static_cast<int>(c.rows), static_cast<int>(c.cols),
          c.col_stride == 1 && c.row_stride % count == 0 &&
              reinterpret_cast<uint64_t>(c.data) % word == 0};
}

// Floats from row to row of a tile of sums: no two lanes of a warp that holds accumulators of wgmma
// meet in a bank, whichever way round they are written.
__host__ __device__ constexpr int pitch_of(int cols) { return cols + 4; }

// Writes a warpgroup's 64 x (2 * REGISTERS) accumulators to `sums`: element (i, j) at
// i * step_i + j * step_j.
template <int REGISTERS>
__device__ __forceinline__ void write_accumulators(float* sums, const float (&d)[REGISTERS],
                                                   int step_i, int step_j) {
  const int thread = threadIdx.x % 128;
  sums += (thread / 32 * 16 + thread % 32 / 4) * step_i + thread % 4 * 2 * step_j;
#pragma unroll
  for (int j = 0; j < REGISTERS / 4; ++j) {
    sums[8 * j * step_j] = d[4 * j];
    sums[(8 * j + 1) * step_j] = d[4 * j + 1];
    sums[8 * step_i + 8 * j * step_j] = d[4 * j + 2];
    sums[8 * step_i + (8 * j + 1) * step_j] = d[4 * j + 3];
  }
}

// Stores neighbours of C, 8 or 16 bytes of it, as one word.
template <typename Out, typename Acc, int COUNT>
__device__ __forceinline__ void store_word(Out* to, const Acc (&x)[COUNT]) {
  using Word = std::conditional_t<COUNT * sizeof(Out) == 8, uint2, uint4>;
  static_assert(COUNT * sizeof(Out) == sizeof(Word));
  union {
    Out elements[COUNT];
    Word word;
  } packed{};
#pragma unroll
  for (int e = 0; e < COUNT; ++e) packed.elements[e] = narrow<Out>(x[e]);
  *reinterpret_cast<Word*>(to) = packed.word;
}

// Stores `inside` of the neighbours of C that are a word where C has vectors.
template <typename Out, typename Acc, int COUNT>
__device__ __forceinline__ void store_neighbours(const Rows& c, const Acc (&x)[COUNT], int row,
                                                 int col, int inside) {
  Out* to = static_cast<Out*>(c.data) + row * c.row_stride + col * c.col_stride;
  if (c.vectors && inside == COUNT) {
    store_word(to, x);
  } else {
#pragma unroll
    for (int e = 0; e < COUNT; ++e)
      if (e < inside) to[e * c.col_stride] = narrow<Out>(x[e]);
  }
}

// Which rows of a tile of sums, `rows` of pitch_of(COLS) floats, a block finishes.
struct Share {
  int rows, splits;

  __device__ int each() const { return (rows - 1) / splits + 1; }
  __device__ int first(int rank) const { return min(rank * each(), rows); }
  __device__ int count(int rank) const { return first(rank + 1) - first(rank); }
};

// Makes `barrier` count in what the other blocks will send. By one thread; none of the cluster may
// send before all of its blocks have done so: a barrier of the cluster stands in between.
template <int COLS>
__device__ __forceinline__ void expect_partials(uint32_t barrier, const Share& share, int rank) {
  mbarrier_init(barrier, 1);
  mbarrier_arrive_expect_tx(barrier,
                            (share.splits - 1) * share.count(rank) * pitch_of(COLS) * 4);
}

// Sends the other blocks their rows of the tile at `sums`: block p's part arrives at `parts` + p *
// each() rows, which nothing else may use. By one thread.
template <int COLS>
__device__ __forceinline__ void send_partials(uint32_t sums, uint32_t parts, uint32_t barrier,
                                           const Share& share, int rank) {
  constexpr uint32_t ROW_BYTES = pitch_of(COLS) * 4;
  for (int i = 1; i < share.splits; ++i) {
    const int to = rank + i < share.splits ? rank + i : rank + i - share.splits;
    if (share.count(to) > 0)
      cp_async_bulk_cluster(parts + rank * share.each() * ROW_BYTES,
                            sums + share.first(to) * ROW_BYTES, share.count(to) * ROW_BYTES,
                            barrier, to);
  }
}

// Finishes this block's rows of a tile of C, COLS columns from (row, col), from its own sums and
// the other blocks' parts. By THREADS threads, each with some groups of four neighbours at a time:
// one after the other they would wait for shared memory each time.
template <bool FUSED, typename Out, int COLS, int THREADS>
__device__ __forceinline__ void finish_share(const float* sums, const float* parts,
                                             const Share& share, int rank, const Rows& c,
                                             const Epilogue<float>& epilogue, int row, int col,
                                             int thread) {
  constexpr int UNITS = COLS / 4, PITCH = pitch_of(COLS), BATCH = FUSED ? 2 : 4;
  const int first = share.first(rank), total = share.count(rank) * UNITS;
  const int stride = share.each() * PITCH;
  for (int start = thread; start < total; start += THREADS * BATCH) {
    float x[BATCH][4] = {};
    for (int split = 0; split < share.splits; ++split) {
      const float* from = split == rank ? sums + first * PITCH : parts + split * stride;
#pragma unroll
      for (int u = 0; u < BATCH; ++u) {
        const int unit = start + u * THREADS;
        if (unit >= total) continue;
        const float4 part =
            *reinterpret_cast<const float4*>(from + unit / UNITS * PITCH + unit % UNITS * 4);
        x[u][0] += part.x, x[u][1] += part.y, x[u][2] += part.z, x[u][3] += part.w;
      }
    }
#pragma unroll
    for (int u = 0; u < BATCH; ++u) {
      const int unit = start + u * THREADS;
      const int i = row + first + unit / UNITS, j = col + unit % UNITS * 4;
      const int inside = c.cols - j < 4 ? c.cols - j : 4;
      if (unit >= total || inside <= 0) continue;
      finish<FUSED, Out>(epilogue, x[u], i, j, 0, inside);
      store_neighbours<Out>(c, x[u], i, j, inside);
    }
  }
}

// The same, by one look at whether anything follows the product.
template <typename Out, int COLS, int THREADS>
__device__ __forceinline__ void finish_share(bool plain, const float* sums, const float* parts,
                                             const Share& share, int rank, const Rows& c,
                                             const Epilogue<float>& epilogue, int row, int col,
                                             int thread) {
  if (plain)
    finish_share<false, Out, COLS, THREADS>(sums, parts, share, rank, c, epilogue, row, col,
                                            thread);
  else
    finish_share<true, Out, COLS, THREADS>(sums, parts, share, rank, c, epilogue, row, col, thread);
}

}  // namespace tcgemm::sm90
