// What a Hopper rung fuses, on a warpgroup's accumulators in registers: the same function as
// tile/epilogue.cuh, over a chunk of 64 rows x 128 bytes of C at a time.
//
// A thread's part of a chunk is 16 words of C: rows m + 16 w + l / 4 and 8 below it (w: its warp of
// the warpgroup, l its lane), columns n + 8 j + 2 (l % 4) and the next. C_in is read ahead of its
// use, so that its way from memory passes under the chunk before it, or under the last multiplies.
#pragma once

#include "sm90/tile.cuh"

namespace tcgemm::sm90 {

constexpr int CHUNK_ROWS = 64;
constexpr uint32_t CHUNK_BYTES = CHUNK_ROWS * 128;
template <typename Out>
constexpr int CHUNK_N = 128 / sizeof(Out);  // columns
template <typename Out>
constexpr int CHUNK_REGISTERS = CHUNK_N<Out> / 2;  // accumulators of a thread

// Where a thread's first accumulator of a chunk lies in C.
struct Place {
  int m, n;
  __device__ Place(int m, int n)
      : m(m + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4), n(n + threadIdx.x % 4 * 2) {}
};

// One element of a vector for each of a thread's two rows: what multiplies or is added to them.
template <typename In, typename Acc>
__device__ __forceinline__ void load_rows(const Vector& v, Place at, int M, Acc (&to)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half)
    to[half] = widen<Acc>(
        static_cast<const In*>(v.data)[min(at.m + 8 * half, M - 1) * v.row_stride]);
}

// What is known of a tile before its accumulators are there: the factor of each row (alpha and the scales that
// are one for a row), its bias, where that is one for a row, and whether a chunk's C_in and bias can
// be read as words without a look at the edges.
template <typename Out, typename Acc>
struct RowTerms {
  Acc factor[2], term[2];
  bool factors, terms, columns, whole;
  const float* scales;  // one for each column, contiguous, or null

  __device__ __forceinline__ void load(const Epilogue<Acc>& e, int m, int n, int width, int M,
                                       int N) {
    const Place at(m, n);
    factor[0] = factor[1] = e.alpha;
    factors = e.alpha != Acc(1);
    scales = nullptr;
    if constexpr (std::is_same_v<Acc, float>) {
      for (const Vector& scale : {e.scale_a, e.scale_b}) {
        if (scale.data == nullptr) continue;
        if (scale.col_stride != 0) {
          scales = static_cast<const float*>(scale.data);
          continue;
        }
        float rows[2];
        load_rows<float>(scale, at, M, rows);
        factor[0] *= rows[0];
        factor[1] *= rows[1];
        factors = true;
      }
    }
    terms = e.bias.data != nullptr && e.bias.col_stride == 0;
    if (terms) load_rows<Out>(e.bias, at, M, term);
    columns = e.bias.data != nullptr && e.bias.col_stride != 0;
    whole = m + CHUNK_ROWS <= M && n + width <= N && (e.c_in == nullptr || e.c_in_vectors) &&
            (!columns || (e.bias.col_stride == 1 &&
                          reinterpret_cast<uint64_t>(e.bias.data) % (2 * sizeof(Out)) == 0));
  }
};

// Two neighbours in a row of Out, as one word or two.
template <typename Out>
union PairOf {
  Out elements[2];
  std::conditional_t<sizeof(Out) == 2, uint32_t, uint64_t> word;
};

// What a chunk adds to the accumulators of a thread, read ahead of its use.
template <typename Out>
struct Addends {
  static constexpr int COLUMNS = CHUNK_N<Out> / 8;  // pairs of columns
  PairOf<Out> c_in[2 * COLUMNS], bias[COLUMNS];

  template <typename Acc>
  __device__ __forceinline__ void load(const Epilogue<Acc>& e, const RowTerms<Out, Acc>& rows, int m,
                                       int n, int M, int N, int64_t batch) {
    const Place at(m, n);
    const auto read = [&](PairOf<Out>& pair, const Out* line, int j, int64_t stride, bool exists) {
      const int col = at.n + 8 * j;
      if (rows.whole) {
        pair.word = *reinterpret_cast<const decltype(pair.word)*>(line + col);
      } else {
#pragma unroll
        for (int e = 0; e < 2; ++e)
          pair.elements[e] = exists && col + e < N ? line[(col + e) * stride] : Out(0);
      }
    };
    if (e.c_in != nullptr) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t row = at.m + 8 * half;
        const Out* line = static_cast<const Out*>(e.c_in) + batch * e.batch_stride +
                          row * e.row_stride;
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j)
          read(c_in[2 * j + half], line, j, e.col_stride, row < M);
      }
    }
    if (rows.columns) {
#pragma unroll
      for (int j = 0; j < COLUMNS; ++j)
        read(bias[j], static_cast<const Out*>(e.bias.data), j, e.bias.col_stride, true);
    }
  }
};

// A chunk's accumulators, d[first] and on, get all but scales of columns and the activation.
template <typename Out, typename Acc, int REGISTERS>
__device__ __forceinline__ void add_to_chunk(const Epilogue<Acc>& e, const RowTerms<Out, Acc>& rows,
                                             const Addends<Out>& addends, Acc (&d)[REGISTERS],
                                             int first) {
  constexpr int COUNT = CHUNK_REGISTERS<Out>;
  if (rows.factors) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
      d[first + i] = multiply_add(rows.factor[i / 2 % 2], d[first + i], Acc(0));
  }
  if (e.c_in != nullptr) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
      d[first + i] =
          multiply_add(e.beta, widen<Acc>(addends.c_in[i / 2].elements[i % 2]), d[first + i]);
  }
  if (rows.terms) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
      d[first + i] = multiply_add(Acc(1), rows.term[i / 2 % 2], d[first + i]);
  }
  if (rows.columns) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
      d[first + i] =
          multiply_add(Acc(1), widen<Acc>(addends.bias[i / 4].elements[i % 2]), d[first + i]);
  }
}

// A warpgroup's accumulators become values of C, still to be narrowed. (m, n): their corner in matrix `batch`
// of C; addends: what the first chunk adds, already on its way.
template <typename Out, typename Acc, int REGISTERS>
__device__ __forceinline__ void finish_chunks(const Epilogue<Acc>& e, const RowTerms<Out, Acc>& rows,
                                              const Addends<Out>& addends, Acc (&d)[REGISTERS], int m,
                                              int n, int M, int N, int64_t batch) {
  constexpr int STEP = CHUNK_REGISTERS<Out>;
  static_assert(REGISTERS % STEP == 0, "whole chunks");
  Addends<Out> next = addends;
#pragma unroll
  for (int first = 0; first < REGISTERS; first += STEP) {
    const Addends<Out> now = next;
    const int col = n + 2 * first;
    if constexpr (std::is_same_v<Acc, float>) {
      if (rows.scales != nullptr) {
        const int mine = Place(m, col).n;
#pragma unroll
        for (int i = 0; i < STEP; ++i)
          d[first + i] *= rows.scales[min(mine + i / 4 * 8 + i % 2, N - 1)];
      }
    }
    if (first + STEP < REGISTERS) next.load(e, rows, m, col + CHUNK_N<Out>, M, N, batch);
    add_to_chunk(e, rows, now, d, first);
  }
  activate_sums<REGISTERS>(e.activation, d, 0);
}

// Stores a warpgroup's values, whose corner in C is (m, n), by TMA: chunk after chunk through up to
// MOST_BUFFERS x CHUNK_BYTES of shared memory at `chunks`. `barrier`: one of the warpgroup's own; its
// first thread owns the stores, and waits for the last of them to be read before the block ends.
template <typename Out, int MOST_BUFFERS, bool BATCHED, typename Acc, int REGISTERS>
__device__ __forceinline__ void store_chunks(const CUtensorMap* c_map, uint32_t chunks,
                                             uint32_t barrier, const Acc (&d)[REGISTERS], int m,
                                             int n, int batch) {
  const bool stores = threadIdx.x % 128 == 0;
  constexpr int N = 2 * REGISTERS, CHUNKS = (N - 1) / CHUNK_N<Out> + 1;
  // A divisor, so that the oldest store is always that of the buffer written next.
  constexpr int BUFFERS = CHUNKS % MOST_BUFFERS == 0 ? MOST_BUFFERS : 1;
#pragma unroll
  for (int i = 0; i < CHUNKS; ++i) {
    const uint32_t chunk = chunks + i % BUFFERS * CHUNK_BYTES;
    // The buffer's last store has been read out before anyone writes it again.
    if (stores) cp_async_bulk_wait_group_read<BUFFERS - 1>();
    bar_sync(barrier, 128);
    // The last chunk of an uneven tile begins where it ends with the tile, and stores some again.
    const int first = min(i * CHUNK_N<Out>, N - CHUNK_N<Out>);
    write_chunk<Out>(chunk, d, first);
    fence_proxy_async();
    bar_sync(barrier, 128);
    if (stores) {
      if constexpr (BATCHED)
        tma_store_3d(c_map, chunk, n + first, m, batch);
      else
        tma_store_2d(c_map, chunk, n + first, m);
      cp_async_bulk_commit_group();
    }
  }
}

}  // namespace tcgemm::sm90
