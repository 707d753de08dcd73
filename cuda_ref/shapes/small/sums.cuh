// The sums of a tile of small.cu on their way to C, by way of shared memory: of all of K, or of the
// parts of K that the blocks of a cluster have multiplied.
#pragma once

#include "sm90/reduce.cuh"
#include "ptx/mma.cuh"
#include "ptx/sm90.cuh"
#include "small/operand.cuh"
#include "tile/divisor.cuh"

namespace tcgemm::sm90 {

constexpr int MOST_PARTS = 8;  // of K, one to a block of a cluster
constexpr int BARRIER_BYTES = 16;

// Of K, one to a block of a cluster.
struct Parts {
  int count;
  Divisor by;

  static Parts of(int count) { return {count, Divisor::of(count)}; }
  __host__ __device__ unsigned each(unsigned of) const { return by.quotient(of + count - 1); }
};

// What a block of a cluster is sent: of each part of K the sums of the rows that it stores.
template <int TILE>
__host__ __device__ inline int parts_bytes(const Parts& k) {
  return k.each(TILE) * k.count * pitch_of(TILE) * 4;
}

// The steps along K that a block multiplies: all, or of a cluster its part.
template <bool DIVIDED>
struct Steps {
  int first, last;

  __device__ __forceinline__ Steps(unsigned steps, int rank, const Parts& k)
      : first(DIVIDED ? k.by.quotient(steps * rank) : 0),
        last(DIVIDED ? k.by.quotient(steps * (rank + 1)) : steps) {}
};

// How many places each row of a tile of C is shifted in its row of sums: as many as its first
// element lies behind a multiple of four in memory. So four sums from a multiple of four on are one
// word of C, whatever the stride of its rows. What is beyond the last place is at the front.
struct Shift {
  uint32_t origin, slope;

  template <typename Out>
  __device__ static Shift of(const Rows& c, int m, int n) {
    const uint32_t slope = static_cast<uint32_t>(c.row_stride);
    const uint32_t start = static_cast<uint32_t>(reinterpret_cast<uint64_t>(c.data) / sizeof(Out));
    return {start + m * slope + n, slope};
  }
  __device__ int operator()(int row) const { return (origin + row * slope) % 4; }
};

// The rows of a tile of C that a block of a cluster stores, from `first` to `last`, and their sums:
// this block's own, and for each other part of K those that its block sends. Where K is whole, all
// rows are its own.
template <bool DIVIDED, int TILE>
struct Sums {
  static constexpr int PITCH = pitch_of(TILE), ROW_BYTES = PITCH * 4;
  float *own, *parts;
  uint32_t received;  // a barrier, which counts what the others send
  int rows, rank, splits, each, first, last;

  __device__ __forceinline__ Sums(float* own, float* parts, uint32_t received, int rows, int rank,
                                  const Parts& k)
      : own(own), parts(parts), received(received), rows(rows), rank(rank), splits(k.count) {
    each = DIVIDED ? k.each(rows) : rows;
    first = DIVIDED ? min(rank * each, rows) : 0;
    last = DIVIDED ? min(first + each, rows) : rows;
  }

  // Makes the barrier count in what the others will send, and arrives at the cluster's.
  __device__ __forceinline__ void expect() const {
    if (threadIdx.x == 0) {
      mbarrier_init(received, 1);
      mbarrier_arrive_expect_tx(received, (splits - 1) * (last - first) * ROW_BYTES);
      fence_mbarrier_init();
    }
    barrier_cluster_arrive_relaxed();
  }

  // Sends each of the others the rows that it stores. By one thread for each.
  __device__ __forceinline__ void send() const {
    const int to = threadIdx.x, from = min(to * each, rows), count = min(from + each, rows) - from;
    if (to < splits && to != rank && count > 0)
      cp_async_bulk_cluster(shared_address(parts + rank * each * PITCH),
                            shared_address(own + from * PITCH), count * ROW_BYTES, received, to);
  }

  // Elements from `at` on of a row of the tile.
  template <int COUNT>
  __device__ __forceinline__ void load(float (&x)[COUNT], int row, int at) const {
    using Word = std::conditional_t<COUNT == 4, float4, float>;
    union Part {
      Word word;
      float elements[COUNT];
    };
    const auto part = [&](int split) {
      return Part{*reinterpret_cast<const Word*>(
          at + (!DIVIDED || split == rank ? own + row * PITCH
                                          : parts + (split * each + row - first) * PITCH))};
    };
    const Part whole = part(0);
#pragma unroll
    for (int e = 0; e < COUNT; ++e) x[e] = whole.elements[e];
    if constexpr (DIVIDED) {
      int split = 1;
#pragma unroll 1
      do {
        const Part next = part(split);
#pragma unroll
        for (int e = 0; e < COUNT; ++e) x[e] += next.elements[e];
      } while (++split < splits);
    }
  }
};

// Leaves a warp's accumulators at (row, col) of the tile, each row shifted.
template <int TILE, int TILES_N>
__device__ __forceinline__ void write_sums(float* sums, const float (&d)[TILES_N][4], int row,
                                           int col, const Shift& shift) {
  const int lane = threadIdx.x % 32;
  float* const own = sums + (row + lane / 4) * pitch_of(TILE);
  const int place = col + lane % 4 * 2 + shift(row + lane / 4);  // and of the row eight further
#pragma unroll
  for (int u = 0; u < TILES_N; ++u) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      int x = place + 8 * u + e;
      if (u == TILES_N - 1 && x >= TILE) x -= TILE;
      own[x] = d[u][e];
      own[8 * pitch_of(TILE) + x] = d[u][2 + e];
    }
  }
}

// Stores rows of the tile at (m, n).
template <int THREADS, bool FUSED, typename Out, bool DIVIDED, int TILE>
__device__ __forceinline__ void store_rows(const Sums<DIVIDED, TILE>& sums, const Rows& c,
                                           const Shift& shift, const Epilogue<float>& epilogue,
                                           int m, int n, int batch) {
  constexpr int WORDS = TILE / 4, PASS = THREADS / WORDS;
  static_assert(PASS % 4 == 0);  // all rows of a thread are shifted alike
  {
    const int at = threadIdx.x % WORDS * 4;
    int row = sums.first + threadIdx.x / WORDS;
    const int col = n + at - shift(row), inside = min(c.cols - col, 4);
    const bool whole = c.vectors && inside == 4;
    Out* to = static_cast<Out*>(c.data) + (m + row) * c.row_stride + col * c.col_stride;
    if (inside > 0 && col >= n) {
#pragma unroll 1
      for (; row < sums.last; row += PASS, to += PASS * c.row_stride) {
        float x[4];
        sums.load(x, row, at);
        finish<FUSED, Out>(epilogue, x, m + row, col, batch, inside);
        if (whole) {
          store_word(to, x);
        } else {
#pragma unroll
          for (int e = 0; e < 4; ++e)
            if (e < inside) to[e * c.col_stride] = narrow<Out>(x[e]);
        }
      }
    }
  }
  if constexpr (FUSED) return;
  // The first four places of a row that is shifted are no word of C: some are from its end.
  const int at = threadIdx.x % 4;
#pragma unroll 1
  for (int row = sums.first + threadIdx.x / 4; row < sums.last; row += THREADS / 4) {
    const int shifted = shift(row), col = n + at - shifted + (at < shifted ? TILE : 0);
    if (shifted == 0 || col >= c.cols) continue;
    float x[1];
    sums.load(x, row, at);
    static_cast<Out*>(c.data)[(m + row) * c.row_stride + col] = narrow<Out>(x[0]);
  }
}

// From a warp's accumulators, 16 rows in each of PARTS, the first at (row, col) of the tile, to C.
// DIVIDED: adds what the cluster's blocks have multiplied, in the order of K; before, each has called
// `expect`. The sums take the place of the stages, which all warps are done with.
template <int THREADS, bool FUSED, typename Out, bool DIVIDED, int TILE, int PARTS, int TILES_N>
__device__ __forceinline__ void store_by_sums(const Sums<DIVIDED, TILE>& sums,
                                              const float (&d)[PARTS][TILES_N][4], int row,
                                              int col, const Rows& c,
                                              const Epilogue<float>& epilogue, int m, int n,
                                              int batch) {
  // Fused, what comes with C is read by fours from a multiple of four on: nothing is shifted.
  const bool shifts = !FUSED && c.col_stride == 1;
  const Shift shift = shifts ? Shift::of<Out>(c, m, n) : Shift{};
  Rows to = c;
  to.vectors = c.vectors || shifts;
  __syncthreads();  // all have read the last stage
#pragma unroll
  for (int u = 0; u < PARTS; ++u) write_sums<TILE>(sums.own, d[u], row + 16 * u, col, shift);
  if constexpr (DIVIDED) fence_proxy_async();
  __syncthreads();
  if constexpr (DIVIDED) {
    barrier_cluster_wait();  // every block expects what is sent; all have arrived long since
    sums.send();
    mbarrier_try_wait_parity(sums.received, 0);
    barrier_cluster_arrive_relaxed();
  }
  store_rows<THREADS, FUSED, Out>(sums, to, shift, epilogue, m, n, batch);
  // No block exits while its sums are still on their way to another.
  if constexpr (DIVIDED) barrier_cluster_wait();
}

}  // namespace tcgemm::sm90
