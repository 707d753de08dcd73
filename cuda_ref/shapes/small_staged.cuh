// small.cu where rows are no words of 8 or 4 bytes, or whole vectors of 16: operands by way of
// shared memory.
//
// A warp's load of neighbours along a row is 2 to 16 sectors of the L2; the same elements loaded as
// mma.sync wants them are 8 rows to an instruction, 8 to 16 sectors of 2 bytes each. So the block
// loads rows as they lie, leaves them in shared memory, and ldmatrix hands them to mma.sync,
// transposed where they run along M or N.
//
// A tile of 32 has two stages on their way to registers: a block waits for the stages of a long K
// one after the other. A tile of 64 has a quarter of the instructions for each element of C, where
// an SM has many blocks.
#pragma once

#include "sm90/reduce.cuh"
#include "small_fragments.cuh"

namespace tcgemm::sm90 {

constexpr int MOST_PARTS = 8;  // of K, one to a block of a cluster

// A barrier; two stages, whose place the sums take; and what a cluster sends: from each block the
// sums of the rows that this one stores.
constexpr int BARRIER_BYTES = 16;
template <typename A, typename B>
constexpr int STAGED_BYTES = std::max(2 * (A::SIZE + B::SIZE) * 2, A::TILE * pitch_of(A::TILE) * 4);
template <typename A, typename B>
int staged_bytes(int splits) {
  const int rows = splits > 1 ? ceil_div(A::TILE, splits) * splits : 0;
  return BARRIER_BYTES + STAGED_BYTES<A, B> + rows * pitch_of(A::TILE) * 4;
}

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
  int rows, rank, splits, each, first, last;

  __device__ __forceinline__ Sums(float* own, float* parts, int rows, int rank, int splits)
      : own(own), parts(parts), rows(rows), rank(rank), splits(splits) {
    each = DIVIDED ? (static_cast<unsigned>(rows) - 1) / static_cast<unsigned>(splits) + 1 : rows;
    first = DIVIDED ? min(rank * each, rows) : 0;
    last = DIVIDED ? min(first + each, rows) : rows;
  }

  // Makes `barrier` count in what the others will send. By one thread.
  __device__ __forceinline__ void expect(uint32_t barrier) const {
    mbarrier_init(barrier, 1);
    mbarrier_arrive_expect_tx(barrier, (splits - 1) * (last - first) * ROW_BYTES);
  }

  // Sends each of the others the rows that it stores. By one thread for each.
  __device__ __forceinline__ void send(uint32_t barrier) const {
    const int to = threadIdx.x, from = min(to * each, rows), count = min(from + each, rows) - from;
    if (to < splits && to != rank && count > 0)
      cp_async_bulk_cluster(shared_address(parts + rank * each * PITCH),
                            shared_address(own + from * PITCH), count * ROW_BYTES, barrier, to);
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

// Stores rows of the tile at (m, n).
template <bool FUSED, typename Out, bool DIVIDED, int TILE>
__device__ __forceinline__ void store_rows(const Sums<DIVIDED, TILE>& sums, const Rows& c,
                                           const Shift& shift, const Epilogue<float>& epilogue,
                                           int m, int n, int batch) {
  constexpr int WORDS = TILE / 4, PASS = STAGED_THREADS / WORDS;
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
          union {
            Out elements[4];
            std::conditional_t<sizeof(Out) == 2, uint2, uint4> word;
          } four{{narrow<Out>(x[0]), narrow<Out>(x[1]), narrow<Out>(x[2]), narrow<Out>(x[3])}};
          *reinterpret_cast<decltype(four.word)*>(to) = four.word;
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
  static_assert(TILE * 4 <= STAGED_THREADS);
  const int at = threadIdx.x % 4, row = sums.first + threadIdx.x / 4, shifted = shift(row);
  const int col = n + at - shifted + (at < shifted ? TILE : 0);
  if (shifted == 0 || row >= sums.last || col >= c.cols) return;
  float x[1];
  sums.load(x, row, at);
  static_cast<Out*>(c.data)[(m + row) * c.row_stride + col] = narrow<Out>(x[0]);
}

// C's tile at (m, n) of matrix `batch`, by blocks of a cluster that divide K into `splits` parts.
// Bits depend on no timing: parts are added in the order of K.
template <bool FUSED, typename In, typename Out, typename A, typename B>
__device__ __forceinline__ void multiply_staged(const Side& a, const Side& b, const Rows& c,
                                                const Epilogue<float>& epilogue, int m, int n,
                                                int batch, int splits) {
  constexpr int TILE = A::TILE, DEPTH = A::STAGE_DEPTH, STAGE = A::SIZE + B::SIZE;
  constexpr int ON_THEIR_WAY = TILE == 32 ? 2 : 1;              // stages, in registers
  constexpr int WARPS_M = TILE / 16, WARP_N = TILE * WARPS_M / 8;  // of eight warps
  constexpr int COLUMNS = WARP_N < 16 ? 8 : 16, STEP = 256 / COLUMNS;  // of an ldmatrix of B
  uint8_t* const shared = reinterpret_cast<uint8_t*>(dynamic_shared());
  uint16_t* const panels = reinterpret_cast<uint16_t*>(shared + BARRIER_BYTES);
  float* const sums = reinterpret_cast<float*>(panels);
  float* const parts = reinterpret_cast<float*>(shared + BARRIER_BYTES + STAGED_BYTES<A, B>);
  const uint32_t received = shared_address(shared);

  const int rank = splits > 1 ? cluster_ctarank() : 0;
  const int rows = min(c.rows - m, TILE);
  if (splits > 1) {
    if (threadIdx.x == 0) {
      Sums<true, TILE>(sums, parts, rows, rank, splits).expect(received);
      fence_mbarrier_init();
    }
    barrier_cluster_arrive_relaxed();
  }
  const unsigned steps = static_cast<unsigned>(a.K - 1) / DEPTH + 1;
  const int first = splits > 1 ? steps * rank / static_cast<unsigned>(splits) : 0;
  const int last = splits > 1 ? steps * (rank + 1) / static_cast<unsigned>(splits) : steps;
  const bool halved = a.K <= DEPTH / 2;
  A of_a(a, m, first * DEPTH, halved);
  B of_b(b, n, first * DEPTH, halved);
  if constexpr (TILE == 32) of_a.prefetch(a, first * DEPTH), of_b.prefetch(b, first * DEPTH);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = warp % WARPS_M * 16, col = warp / WARPS_M * WARP_N;
  const int a_at = A::row_of_a(row, lane);
  const int b_at = A::SIZE + B::template row_of_b<COLUMNS>(col, lane);
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();  // not before, or several kernels wait beside each other

  float d[WARP_N / 8][4] = {};
  typename A::Register a_words[ON_THEIR_WAY][A::PASSES];
  typename B::Register b_words[ON_THEIR_WAY][B::PASSES];
#pragma unroll 1
  for (int at = first - ON_THEIR_WAY; at < last; at += ON_THEIR_WAY) {
#pragma unroll
    for (int i = 0; i < ON_THEIR_WAY; ++i) {
      const int step = at + i, k = step * DEPTH, next = k + ON_THEIR_WAY * DEPTH;
      if (step >= last) break;
      uint16_t* const panel = panels + (ON_THEIR_WAY == 2 ? i : step & 1) * STAGE;
      if (step >= first) {
        of_a.leave(a_words[i], panel, a, k, halved);
        of_b.leave(b_words[i], panel + A::SIZE, b, k, halved);
        __syncthreads();  // the stage is complete, and all have read the other
      }
      if (step + ON_THEIR_WAY < last) {
        of_a.load(a_words[i], a, next, halved);
        of_b.load(b_words[i], b, next, halved);
      }
      if (step < first) continue;
      const int depth = min(DEPTH, a.K - k);  // beyond it both are zero
#pragma unroll 1
      for (int j = 0; j < depth; j += STEP) {
        uint32_t y[WARP_N / COLUMNS][4];
#pragma unroll
        for (int u = 0; u < WARP_N / COLUMNS; ++u)
          ldmatrix_x4<!B::K_MAJOR>(
              y[u], shared_address(panel + b_at + B::along_k(j) + B::along_mn(u * COLUMNS)));
#pragma unroll
        for (int s = 0; s < STEP / 16; ++s) {
          uint32_t x[4];
          ldmatrix_x4<!A::K_MAJOR>(x, shared_address(panel + a_at + A::along_k(j + 16 * s)));
#pragma unroll
          for (int u = 0; u < WARP_N / 8; ++u) {
            const int q = 2 * (s + u % (COLUMNS / 8));
            mma_m16n8k16<In>(d[u], x, y[u * 8 / COLUMNS][q], y[u * 8 / COLUMNS][q + 1]);
          }
        }
      }
    }
  }

  // Fused, what comes with C is read by fours from a multiple of four on: nothing is shifted.
  const bool shifts = !FUSED && c.col_stride == 1;
  const Shift shift = shifts ? Shift::of<Out>(c, m, n) : Shift{};
  Rows to = c;
  to.vectors = c.vectors || shifts;
  __syncthreads();  // all have read the last stage
  float* const own = sums + (row + lane / 4) * pitch_of(TILE);
  const int place = col + lane % 4 * 2 + shift(row + lane / 4);  // and of the row eight further
#pragma unroll
  for (int u = 0; u < WARP_N / 8; ++u) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      int x = place + 8 * u + e;
      if (u == WARP_N / 8 - 1 && x >= TILE) x -= TILE;
      own[x] = d[u][e];
      own[8 * pitch_of(TILE) + x] = d[u][2 + e];
    }
  }
  if (splits == 1) {
    __syncthreads();
    const Sums<false, TILE> whole(sums, parts, rows, rank, 1);
    store_rows<FUSED, Out>(whole, to, shift, epilogue, m, n, batch);
    return;
  }
  const Sums<true, TILE> divided(sums, parts, rows, rank, splits);
  fence_proxy_async();
  __syncthreads();
  barrier_cluster_wait();  // every block expects what is sent; all have arrived long since
  divided.send(received);
  mbarrier_try_wait_parity(received, 0);
  barrier_cluster_arrive_relaxed();
  store_rows<FUSED, Out>(divided, to, shift, epilogue, m, n, batch);
  // No block exits while its sums are still on their way to another.
  barrier_cluster_wait();
}

}  // namespace tcgemm::sm90
