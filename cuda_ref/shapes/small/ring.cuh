// small.cu where every row begins at a multiple of 16 bytes: operands by cp.async, no tensor map.
//
// As many stages as K has, up to RING_STAGES, are asked for before the first is waited for: of a
// short K that is one trip. Where K is whole and nothing is fused, lanes store what they have: C
// takes no way through shared memory. What is left is a few hundred instructions, which a kernel
// among others has to fetch before it runs them.
#pragma once

#include "small/sums.cuh"
#include "tile/swizzled_loader.cuh"

namespace tcgemm::sm90 {

constexpr int RING_STAGES = 8;
constexpr int RING_DEPTH = 64;  // elements along K of a stage

constexpr int RING_THREADS = 128;  // 2 x 2 warps

// An operand's stages: TILE_ of M or N by RING_DEPTH of K, zeros outside of the operand. Each
// thread copies units of 16 bytes, PASS rows apart.
template <Access ACCESS, int TILE_>
struct RingPanel {
  static constexpr int TILE = TILE_, STAGE_DEPTH = RING_DEPTH;
  static constexpr bool K_MAJOR = ACCESS == Access::K;
  using Tile = SwizzledTile<uint16_t, K_MAJOR, TILE, RING_DEPTH>;
  static constexpr int BYTES = Tile::ROWS * Tile::ROW_BYTES;
  static constexpr int PASS = RING_THREADS / Tile::UNITS, PASSES = Tile::ROWS / PASS;
  static_assert(Tile::swizzle(PASS) == 0 && PASS % 16 == 0);

  const uint16_t* at;   // this thread's first unit of the next stage
  int64_t pass_stride;  // elements
  int place;            // bytes, in a stage
  int mn_left, k_left;  // from there on to the ends of the operand
  int into;             // elements from a multiple of 16 along K

  // From (mn, k) on.
  __device__ __forceinline__ RingPanel(const Side& from, int mn, int k) {
    const int row = threadIdx.x / Tile::UNITS, unit = threadIdx.x % Tile::UNITS;
    mn += K_MAJOR ? row : unit * VECTOR;
    k += K_MAJOR ? unit * VECTOR : row;
    at = from.data + mn * from.mn_stride + k * from.k_stride;
    pass_stride = PASS * (K_MAJOR ? from.mn_stride : from.k_stride);
    place = Tile::at(row, unit);
    mn_left = from.mn - mn;
    k_left = from.K - k;
    into = k % 16;
  }

  // Starts the copies of the next stage, up to a multiple of 16 behind K.
  __device__ __forceinline__ void load(unsigned char* stage) {
    const int rows = K_MAJOR ? mn_left : k_left;
    const int bytes = 2 * max(0, min(K_MAJOR ? k_left : mn_left, VECTOR));
#pragma unroll
    for (int i = 0; i < PASSES; ++i)
      if ((K_MAJOR ? 0 : i * PASS) < k_left + into)
        cp_async_16(stage + place + i * PASS * Tile::ROW_BYTES, at + i * pass_stride,
                    i * PASS < rows ? bytes : 0);
    at += K_MAJOR ? RING_DEPTH : PASSES * pass_stride;
    k_left -= RING_DEPTH;
  }
};

// As many stages as a block has steps, up to RING_STAGES. Its sums take their place.
template <typename A, typename B>
__host__ __device__ constexpr int stages_bytes(unsigned steps) {
  constexpr int SUMS = A::TILE * pitch_of(A::TILE) * 4, STAGE = A::BYTES + B::BYTES;
  const int stages = (steps < RING_STAGES ? steps : RING_STAGES) * STAGE;
  return stages > SUMS ? stages : SUMS;
}

// And of a cluster the parts, and a barrier.
template <typename A, typename B>
int ring_bytes(int64_t steps, const Parts& k) {
  return stages_bytes<A, B>(k.each(static_cast<unsigned>(steps))) +
         (k.count > 1 ? parts_bytes<A::TILE>(k) + BARRIER_BYTES : 0);
}

// Stores a warp's accumulators at (row, col) of C, whose rows are words of four: lanes beside each
// other exchange pairs, so that each has such words.
template <typename Out, int TILES_N>
__device__ __forceinline__ void store_words(const Rows& c, const float (&d)[TILES_N][4], int row,
                                            int col) {
  const int lane = threadIdx.x % 32;
  const bool odd = lane % 2 != 0;  // has the right one of two tiles of 8 columns
  row += lane / 4;
  col += 8 * odd + lane % 4 / 2 * 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int m = row + 8 * half;
    Out* const line = static_cast<Out*>(c.data) + m * c.row_stride + col;
#pragma unroll
    for (int u = 0; u < TILES_N; u += 2) {
      float x[4];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float left = d[u][2 * half + e], right = d[u + 1][2 * half + e];
        const float other = __shfl_xor_sync(0xFFFFFFFF, odd ? left : right, 1);
        x[e] = odd ? other : left;
        x[2 + e] = odd ? right : other;
      }
      if (m >= c.rows || col + 8 * u >= c.cols) continue;
      store_word(line + 8 * u, x);
    }
  }
}

// C's tile at (m, n) of matrix `batch`; DIVIDED: by the blocks of a cluster, which have the
// `parts` of K. Bits depend on no timing: parts are added in the order of K.
template <bool FUSED, bool DIVIDED, typename In, typename Out, typename A, typename B>
__device__ __forceinline__ void multiply_ring(const Side& a, const Side& b, const Rows& c,
                                              const Epilogue<float>& epilogue, int m, int n,
                                              int batch, const Parts& k) {
  constexpr int TILE = A::TILE, STAGE = A::BYTES + B::BYTES, WARP = TILE / 2, PARTS = WARP / 16;
  constexpr int CHAINS = TILE == 32 ? 2 : 1;  // of mma that wait for each other
  unsigned char* const shared = dynamic_shared();
  const unsigned steps = static_cast<unsigned>(a.K - 1) / RING_DEPTH + 1;
  const int rank = DIVIDED ? cluster_ctarank() : 0;
  const Steps<DIVIDED> part(steps, rank, k);
  unsigned char* const parts = shared + stages_bytes<A, B>(k.each(steps));
  const Sums<DIVIDED, TILE> sums(reinterpret_cast<float*>(shared), reinterpret_cast<float*>(parts),
                                 shared_address(parts) + parts_bytes<TILE>(k),
                                 min(c.rows - m, TILE), rank, k);
  if constexpr (DIVIDED) sums.expect();

  A of_a(a, m, part.first * RING_DEPTH);
  B of_b(b, n, part.first * RING_DEPTH);
  const int warp = threadIdx.x / 32;
  const int row = warp % 2 * WARP, col = warp / 2 * WARP;
  const LdmatrixRows<typename A::Tile, true> a_rows(row);
  const LdmatrixRows<typename B::Tile, false> b_rows(col);
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();  // not before, or several kernels wait beside each other

  const auto load = [&](int step, int slot) {
    if (step < part.last) {
      of_a.load(shared + slot * STAGE);
      of_b.load(shared + slot * STAGE + A::BYTES);
    }
    cp_async_commit();
  };
#pragma unroll 1
  for (int i = 0; i < RING_STAGES - 1; ++i) load(part.first + i, i);

  const auto multiply = [&](float (&d)[PARTS][2 * PARTS][4], uint32_t stage, int j) {
    uint32_t x[PARTS][4], y[PARTS][4];
#pragma unroll
    for (int u = 0; u < PARTS; ++u) {
      ldmatrix_x4<!A::K_MAJOR>(x[u], a_rows(stage, u, j));
      ldmatrix_x4<!B::K_MAJOR>(y[u], b_rows(stage + A::BYTES, u, j));
    }
#pragma unroll
    for (int u = 0; u < PARTS; ++u) {
#pragma unroll
      for (int v = 0; v < 2 * PARTS; ++v)
        mma_m16n8k16<In>(d[u][v], x[u], y[v / 2][v % 2 * 2], y[v / 2][v % 2 * 2 + 1]);
    }
  };

  float d[CHAINS][PARTS][2 * PARTS][4] = {};
  int slot = 0;
#pragma unroll 1
  for (int step = part.first; step < part.last; ++step) {
    cp_async_wait<RING_STAGES - 2>();
    __syncthreads();  // the stage is complete, and all have read the one before it
    const uint32_t stage = shared_address(shared + slot * STAGE);
    if (a.K - step * RING_DEPTH >= RING_DEPTH) {
#pragma unroll
      for (int j = 0; j < RING_DEPTH / 16; ++j) multiply(d[j % CHAINS], stage, j);
    } else {
#pragma unroll 1
      for (int j = 0; step * RING_DEPTH + 16 * j < a.K; ++j) multiply(d[0], stage, j);
    }
    load(step + RING_STAGES - 1, (slot == 0 ? RING_STAGES : slot) - 1);
    slot = slot + 1 == RING_STAGES ? 0 : slot + 1;
  }
  if constexpr (CHAINS == 2) {
#pragma unroll
    for (int e = 0; e < 4; ++e) d[0][0][0][e] += d[1][0][0][e], d[0][0][1][e] += d[1][0][1][e];
  }

  if (!FUSED && !DIVIDED && c.vectors && c.cols % 4 == 0) {
#pragma unroll
    for (int u = 0; u < PARTS; ++u)
      store_words<Out>(c, d[0][u], m + row + 16 * u, n + col);
    return;
  }
  store_by_sums<RING_THREADS, FUSED, Out>(sums, d[0], row, col, c, epilogue, m, n, batch);
}

}  // namespace tcgemm::sm90
