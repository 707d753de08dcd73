// The tiles of skinny.cu: their shapes, their wgmma, and the choice among them.
#pragma once

#include <algorithm>

#include "sm90/reduce.cuh"
#include "tile/divisor.cuh"

namespace tcgemm::sm90 {

constexpr int BLOCK_K = 64;
constexpr int MOST_SPLITS = 8;

// Columns of B in a panel, of which a tile of `width` has whole ones: at most 64, a row of the
// swizzle.
__host__ __device__ constexpr int panel_of(int width) {
  return width % 64 == 0 ? 64 : width % 48 == 0 ? 48 : 56;
}

// A tile of C: BLOCK_N columns of B by TILE_M rows of A. Where BLOCK_N is a multiple of 64 the
// operands change places (SWAP_AB): 64 columns of B are wgmma's rows. Other widths are its n, with
// 64 rows of A to a warpgroup.
template <int TILE_M, int BLOCK_N, Major B>
struct Shape {
  static constexpr bool SWAP_AB = BLOCK_N % 64 == 0;
  static constexpr int PANEL_N = panel_of(BLOCK_N);  // columns of B that one wgmma takes
  static constexpr int PANELS = BLOCK_N / PANEL_N;
  static constexpr int CONSUMERS = (SWAP_AB ? PANELS : TILE_M / 64) * 128;  // threads
  static constexpr int THREADS = CONSUMERS + 32;  // the producer warp follows them
  static constexpr int MMAS = SWAP_AB ? 1 : PANELS;  // of a warpgroup, for each 16 along K
  static constexpr int SUMS = (SWAP_AB ? TILE_M : PANEL_N) / 2;  // of a thread, each
  static constexpr uint32_t PANEL_BYTES = B == Major::K ? PANEL_N * 128 : BYTES_PER_64_MN;
  // From what one warpgroup reads of a stage to what the next does.
  static constexpr uint32_t B_TO_NEXT = SWAP_AB ? BYTES_PER_64_MN : 0;
  static constexpr uint32_t A_TO_NEXT = SWAP_AB ? 0 : BYTES_PER_64_MN;
  static constexpr uint32_t B_BYTES = PANELS * PANEL_BYTES;  // in shared memory
  static constexpr uint32_t STAGE_BYTES = B_BYTES + TILE_M * BLOCK_K * 2;
  static constexpr int WIDTH = BLOCK_N;
  // In either orientation.
  static constexpr uint32_t ACCUMULATOR_BYTES = 4 * std::max(TILE_M * pitch_of(BLOCK_N),
                                                     BLOCK_N * pitch_of(TILE_M));
  // What the others of a cluster send: each part of the rows is rounded up to whole rows.
  static constexpr uint32_t PARTIAL_BYTES = 4 * std::max((TILE_M + MOST_SPLITS) * pitch_of(BLOCK_N),
                                                      (BLOCK_N + MOST_SPLITS) * pitch_of(TILE_M));
  // Of a ring in whose place the sums lie at the end.
  static constexpr uint32_t LEAST_STAGES =
      std::max<uint32_t>(2, (ACCUMULATOR_BYTES + STAGE_BYTES - 1) / STAGE_BYTES);
};

// Calls copy(offset in shared memory, inner, outer) for each box of B's tile.
template <typename Tile, Major B, typename Copy>
__device__ __forceinline__ void each_box_of_b(int n, int k, Copy copy) {
  if constexpr (B == Major::K) {
    copy(0, k, n);
  } else {
#pragma unroll
    for (int i = 0; i < Tile::PANELS; ++i) copy(i * Tile::PANEL_BYTES, n + i * Tile::PANEL_N, k);
  }
}

// Asks for the first steps of tile `tile` to be brought into the L2. All tiles have the same A.
template <typename Tile, Major A, Major B, int TILE_M>
__device__ __forceinline__ void prefetch_l2(const CUtensorMap* a_map, const CUtensorMap* b_map,
                                            int tile, int first, int steps) {
  for (int k = first * BLOCK_K; k < (first + steps) * BLOCK_K; k += BLOCK_K) {
    each_box_of_b<Tile, B>(tile * Tile::WIDTH, k, [&](uint32_t, int inner, int outer) {
      cp_async_bulk_prefetch_tensor_2d(b_map, inner, outer);
    });
    if (tile >= 4) continue;
    each_box<A, TILE_M>(0, k, [&](uint32_t, int inner, int outer) {
      cp_async_bulk_prefetch_tensor_2d(a_map, inner, outer);
    });
  }
}

// d += a b for what a warpgroup has of the tile, and 16 along K.
template <typename In, Major A, Major B, int TILE_M, typename Tile>
__device__ __forceinline__ void multiply(float (&d)[Tile::MMAS][Tile::SUMS], uint64_t b, uint64_t a,
                                         bool accumulate) {
  if constexpr (Tile::SWAP_AB) {
    wgmma<TILE_M, In, B, A>(d[0], b, a, accumulate);
  } else {
#pragma unroll
    for (int i = 0; i < Tile::MMAS; ++i)
      wgmma<Tile::PANEL_N, In, A, B>(d[i], a, b + i * (Tile::PANEL_BYTES >> 4), accumulate);
  }
}

// Writes a warpgroup's part of a tile to `sums`: element (n, m) at n * step_n + m * step_m.
template <typename Tile>
__device__ __forceinline__ void write_tile(float* sums, const float (&d)[Tile::MMAS][Tile::SUMS],
                                           int part, int step_n, int step_m) {
  if constexpr (Tile::SWAP_AB) {
    write_accumulators(sums + part * 64 * step_n, d[0], step_n, step_m);
  } else {
#pragma unroll
    for (int i = 0; i < Tile::MMAS; ++i)
      write_accumulators(sums + part * 64 * step_m + i * Tile::PANEL_N * step_n, d[i], step_m,
                         step_n);
  }
}

// Rows of A in a tile, for M of them.
inline int tile_rows(int M, int block_n) {
  return M <= 16 && block_n % 64 == 0 ? 16 : M <= 64 ? 64 : 128;
}

// How many rows of A are loaded: of a K-major one those that there are, since a box that is partly
// outside of the tensor takes longer, not less; of an MN-major one whole panels.
inline int loaded_rows(Major a, int M, int rows) {
  return a == Major::K ? std::min(M, rows) : std::max(rows, PANEL);
}

struct SkinnySchedule {
  int K, splits, stages;
  int a_rows;     // of A that arrive for a step
  int tiles;      // of BLOCK_N columns; with fewer clusters each takes several in turn
  bool persists;  // then the sums lie behind the ring, not in its place
  bool pdl;       // every block has an SM, on which the next kernel may begin
  bool plain;     // nothing follows the product
  Divisor by_splits;
  Rows sums;      // of a part of K, for the kernel that adds them; of a cluster's no data
};

struct Settings {
  int block_n, splits;
  uint32_t bytes;  // of shared memory for a ring and what lies behind it
};

// Without a plan, as few blocks to a tile as occupy most SMs, each with an SM to itself.
inline Settings settings_of(const Gemm& gemm, const Plan& plan, int sms) {
  if (plan.splits > 0) return {plan.block_n, plan.splits, plan.shared_kb * 1024u};
  const int64_t tiles = ceil_div(gemm.c.cols, 64);
  int splits = 1;
  while (tiles * splits < sms * 3 / 4 && splits < std::min(MOST_SPLITS, MAX_CLUSTER)) ++splits;
  return {64, splits, 200 * 1024};
}

// What a build is for: the build system compiles one pair of types at a time. By default it is all.
template <typename In, typename Out>
constexpr bool BUILT =
#ifdef TCGEMM_IN
    std::is_same_v<Out, float> == (TCGEMM_OUT == static_cast<int>(DType::f32)) &&
    std::is_same_v<In, __half> == (TCGEMM_IN == static_cast<int>(DType::f16));
#else
    true;
#endif

// Columns of a tile: as asked, but an A that is stored transposed has whole panels of 64 alone.
inline int width_for(Major a, int rows, int block_n) {
  return a == Major::K || block_n % 64 == 0 ? block_n : rows <= 64 ? 64 : 128;
}

// Calls body(major of A, TILE_M, BLOCK_N as integral_constant), for widths of 64 and 128. An A that
// is stored transposed comes in panels of 64 rows.
template <typename Body>
int with_swap_ab_tile(Major a, int rows, int block_n, Body body) {
  constexpr std::integral_constant<Major, Major::K> k;
  constexpr std::integral_constant<Major, Major::MN> mn;
  constexpr std::integral_constant<int, 16> c16;
  constexpr std::integral_constant<int, 64> c64;
  constexpr std::integral_constant<int, 128> c128;
  if (a == Major::MN && block_n == 64)
    return rows <= 64 ? body(mn, c64, c64) : body(mn, c128, c64);
  if (a == Major::MN) return rows <= 64 ? body(mn, c64, c128) : body(mn, c128, c128);
  if (block_n == 64)
    return rows <= 16 ? body(k, c16, c64) : rows <= 64 ? body(k, c64, c64) : body(k, c128, c64);
  return rows <= 16 ? body(k, c16, c128) : rows <= 64 ? body(k, c64, c128) : body(k, c128, c128);
}

// The same of all widths.
template <typename Body>
int with_tile(Major a, int rows, int block_n, Body body) {
  if (a == Major::MN || block_n == 64 || block_n == 128)
    return with_swap_ab_tile(a, rows, block_n, body);
  constexpr std::integral_constant<Major, Major::K> k;
  const auto with_rows = [&](auto width) {
    if (rows <= 64) return body(k, std::integral_constant<int, 64>{}, width);
    return body(k, std::integral_constant<int, 128>{}, width);
  };
  switch (block_n) {
    case 48: return with_rows(std::integral_constant<int, 48>{});
    case 56: return with_rows(std::integral_constant<int, 56>{});
    case 96: return with_rows(std::integral_constant<int, 96>{});
    default: return with_rows(std::integral_constant<int, 112>{});
  }
}

}  // namespace tcgemm::sm90
