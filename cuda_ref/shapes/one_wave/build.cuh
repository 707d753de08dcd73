// What a build of one_wave is for, one tile and cluster and one case of types, and what follows from
// it: its shared memory, and how a cluster shares out its loads.
#pragma once

#include "sm90/reduce.cuh"
#include "tile/divisor.cuh"
#include "tile/order.cuh"
#include "sm90/epilogue_swapped.cuh"

#ifndef TCGEMM_CLUSTER_M  // the tile of a build that names none
#define TCGEMM_BLOCK_M 64
#define TCGEMM_BLOCK_N 64
#define TCGEMM_NUM_STAGES 8
#define TCGEMM_CLUSTER_M 1
#define TCGEMM_CLUSTER_N 1
#define TCGEMM_DIVIDES 0
#endif

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

// A tile has TCGEMM_BLOCK_M x TCGEMM_BLOCK_N of C. wgmma's m is 64 and its n any multiple of 8. So
// where BLOCK_M is no multiple of 64 the kernel SWAPS: it computes C^T = B^T A^T and stores it
// transposed. All names here and in the kernel are of what it computes.
constexpr bool SWAPS = TCGEMM_BLOCK_M % 64 != 0;
constexpr int BLOCK_M = SWAPS ? TCGEMM_BLOCK_N : TCGEMM_BLOCK_M;
constexpr int BLOCK_N = SWAPS ? TCGEMM_BLOCK_M : TCGEMM_BLOCK_N;
constexpr int BLOCK_K = 64;
constexpr int NUM_STAGES = TCGEMM_NUM_STAGES;  // at most: see STAGES
// Blocks above each other share columns of B, blocks beside each other rows of A.
constexpr int CLUSTER_M = SWAPS ? TCGEMM_CLUSTER_N : TCGEMM_CLUSTER_M;
constexpr int CLUSTER_N = SWAPS ? TCGEMM_CLUSTER_M : TCGEMM_CLUSTER_N;
constexpr int CLUSTER = CLUSTER_M * CLUSTER_N;
constexpr int A_PEERS = CLUSTER_N, B_PEERS = CLUSTER_M;
constexpr int PEERS = A_PEERS + B_PEERS - 1;  // blocks that a block shares a load with, and itself
constexpr bool DIVIDES = TCGEMM_DIVIDES;      // K, among blocks
// Of 256 rows and many columns each of two consumers has 128 rows, whose accumulators are more than a
// thread has registers for at launch. So a warpgroup loads there, and gives them its own, as in
// wgmma_persistent; else a warp does.
constexpr int MMAS = BLOCK_M == 256 && BLOCK_N > 128 ? 2 : 1;
constexpr int CONSUMERS = BLOCK_M / 64 / MMAS;
constexpr bool MOVES_REGISTERS = MMAS > 1;
constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;  // of 3 * 168
constexpr int THREADS = 128 * CONSUMERS + (MOVES_REGISTERS ? 128 : 32);
constexpr uint32_t A_BYTES = BLOCK_M * BLOCK_K * 2;
constexpr uint32_t CHUNKS_AT = 1024;  // behind the barriers; then the ring, of the stages in use
// Rows of B in a stage: of a K-major B those of its boxes, else whole panels of 64 columns.
template <Major B>
constexpr int B_ROWS = B == Major::K ? ceil_div(BLOCK_N, 8 * B_PEERS) * 8 * B_PEERS
                                     : ceil_div(BLOCK_N, 64) * 64;
template <Major B>
constexpr uint32_t STAGE_BYTES = A_BYTES + B_ROWS<B> * BLOCK_K * 2;
// Of a B in whole panels there may be room for fewer than the plan says.
template <Major B>
constexpr int STAGES =
    std::min<int>(NUM_STAGES, (MOST_SHARED_BYTES - CHUNKS_AT) / STAGE_BYTES<B>);
// Steps along K that the blocks ask for to be brought into the L2 as they begin, each of them once:
// all where there are no more than L2_PREFETCH (512 cubed 2.75 to 2.34 us), else L2_PREFETCH_FIRST.
// Blocks of a cluster cannot load before all of it have begun.
constexpr int L2_PREFETCH = BLOCK_M * BLOCK_N <= 64 * 64 ? 16 : DIVIDES || CLUSTER > 1 ? 4 : 0;
constexpr int L2_PREFETCH_FIRST = 4;
// Steps along K of large tiles from which on the grid starts when the kernel ahead has ended. Blocks
// that start early take the SMs in the order in which these come free, and those that share rows of A
// are apart then: 3072 x 768 x 8192 behind a persistent product takes some 20 us more on an H100.
constexpr int IN_ORDER_STEPS = 64;
constexpr bool IN_ORDER = CLUSTER == 1 && BLOCK_M * BLOCK_N > 128 * 128;
static_assert(BLOCK_M % 64 == 0 && BLOCK_N % 16 == 0, "whole warpgroups, and wgmma's n");
static_assert(CLUSTER <= 8 && 8 % CLUSTER == 0, "of 8 rows, or of a panel's 64, whole shares");
static_assert(B_PEERS <= 2 || BLOCK_N != 48, "no plan has four shares of 48 rows");
static_assert(STAGE_BYTES<Major::K> % 1024 == 0, "panels start at multiples of 1024 bytes");
static_assert(!(SWAPS && DIVIDES), "the kernel that adds parts of K reads rows");

template <typename Out>
constexpr int CHUNKS = MMAS * ((BLOCK_N * int{sizeof(Out)} - 1) / 128 + 1);  // of a consumer
template <typename Out>
constexpr uint32_t CHUNKS_BYTES = SWAPS ? MMAS * SWAPPED_BYTES<BLOCK_N> : CHUNKS<Out> * CHUNK_BYTES;
template <typename Out>
constexpr uint32_t ALL_CHUNKS = CONSUMERS * CHUNKS_BYTES<Out>;
// Chunks beside the ring cost a stage, and steps wait for loads: so they lie in the ring, which
// nobody needs once all consumers have multiplied, of large tiles, and of others that have as many
// stages as there is room for without chunks. Then no C_in can come into them before. Nothing is fused
// into a swapped tile, whose chunks are there in any case.
template <typename Out, Major B>
constexpr bool CHUNKS_IN_RING =
    SWAPS || BLOCK_M * BLOCK_N > 128 * 128 ||
    CHUNKS_AT + ALL_CHUNKS<Out> + STAGES<B> * STAGE_BYTES<B> > MOST_SHARED_BYTES;
// Whether threads store a plain C whose rows split sectors: 5 % faster of few steps, 2 % of more; of
// blocks of one warpgroup no faster.
constexpr bool IN_ROWS = CONSUMERS > 1 && !DIVIDES && !SWAPS;
template <typename Out>
constexpr bool FUSES = BLOCK_N % 64 == 0 && !CHUNKS_IN_RING<Out, Major::K>;  // in whole chunks
template <typename Out, Major B>
constexpr uint32_t RING_AT = CHUNKS_AT + (CHUNKS_IN_RING<Out, B> ? 0 : ALL_CHUNKS<Out>);
static_assert(8 * (2 * NUM_STAGES + CONSUMERS * CHUNKS<float>) <= CHUNKS_AT, "barriers come first");

// Steps along K that are loaded before a block's warps have met.
constexpr int AT_ONCE = 4;

// The shared memory of a block that takes so many steps along K. Few of them ask for little: an SM
// that keeps its split of L1 and shared memory starts sooner.
template <typename Out, Major B>
constexpr uint32_t shared_bytes(int steps) {
  static_assert(RING_AT<Out, B> + STAGES<B> * STAGE_BYTES<B> <= MOST_SHARED_BYTES &&
                    CHUNKS_AT + ALL_CHUNKS<Out> <= MOST_SHARED_BYTES, "a block has room for both");
  const uint32_t ring = std::min(steps, STAGES<B>) * STAGE_BYTES<B>;
  return RING_AT<Out, B> + (CHUNKS_IN_RING<Out, B> ? std::max(ring, ALL_CHUNKS<Out>) : ring);
}

// C's map, and who stores it, of the kernel's problem.
inline Output output_for(bool in_rows, const Gemm& gemm, CUtensorMap* map, bool batched) {
  if (SWAPS) return output_of(false, transposed(gemm).c, gemm.out, map, 0, 64, BLOCK_N);
  return output_of(in_rows, gemm.c, gemm.out, map, batched ? 1 : 0, BLOCK_N);
}

// A step along K of a consumer's rows: its stage of A and of B by their descriptors.
template <typename In, Major A, Major B>
__device__ __forceinline__ void multiply(float (&d)[MMAS][BLOCK_N / 2], uint64_t a, uint64_t b,
                                         bool accumulate) {
#pragma unroll
  for (int k = 0; k < BLOCK_K / MMA_K; ++k)
#pragma unroll
    for (int i = 0; i < MMAS; ++i)
      wgmma<BLOCK_N, In, A, B>(d[i], a + i * (BYTES_PER_64_MN >> 4) + k * DESCRIPTOR_PER_MMA_K<A>,
                               b + k * DESCRIPTOR_PER_MMA_K<B>, accumulate || k > 0);
}

// Where a block stands in its cluster, of CLUSTER_M blocks above each other in CLUSTER_N columns: rank
// m + n * CLUSTER_M. Blocks are told of by their ranks.
struct InCluster {
  int m, n;

  static __device__ __forceinline__ InCluster here() {
    const int rank = CLUSTER > 1 ? cluster_ctarank() : 0;
    return {rank % CLUSTER_M, rank / CLUSTER_M};
  }
  // Masks of who shares this block's columns of B, and its rows of A; itself among both.
  __device__ __forceinline__ uint16_t above() const {
    return ((1 << CLUSTER_M) - 1) << (n * CLUSTER_M);
  }
  __device__ __forceinline__ uint16_t beside() const {
    return ((1 << CLUSTER) - 1) / ((1 << CLUSTER_M) - 1) << m;
  }
  // The i-th of the PEERS, who wait until this block has read a stage: those above, then those beside,
  // of whom this block, which is above itself, is left out.
  __device__ __forceinline__ uint32_t peer(uint32_t i) const {
    const uint32_t column = (i - CLUSTER_M + n + 1) % CLUSTER_N;
    return i < CLUSTER_M ? n * CLUSTER_M + i : column * CLUSTER_M + m;
  }
};

// How the tile of an operand, ROWS of M or N by BLOCK_K, is shared out among PEERS blocks: rows of a
// K-major one; of an MN-major one panels of 64, or where those are too few, rows along K.
template <Major MAJOR, int ROWS, int PEERS>
struct Shares {
  static constexpr int PANELS = (ROWS + 63) / 64;
  static constexpr bool BY_PANELS = PANELS % PEERS == 0;
  static constexpr int DEPTH = MAJOR == Major::K || BY_PANELS ? BLOCK_K : BLOCK_K / PEERS;

  // Rows of M or N in a box, for an operand that has `extent` of them: a box that is partly outside
  // of it takes longer, not less.
  static __host__ __device__ constexpr int box(int64_t extent) {
    if (MAJOR != Major::K) return 64;
    const int64_t rows = extent < ROWS ? extent : ROWS;
    return static_cast<int>(PEERS == 1 ? rows : (rows - 1) / (8 * PEERS) * 8 + 8);
  }
  // Rows, or columns of panels, that arrive for a step, from all multicast peers.
  static __host__ __device__ constexpr int rows(int box) {
    return MAJOR == Major::K ? PEERS * box : PANELS * 64;
  }

  // Calls copy(offset in shared memory, inner, outer) for each box of block `rank`.
  template <typename Copy>
  static __device__ __forceinline__ void each(int rank, int mn, int k, int box, Copy copy) {
    if constexpr (MAJOR == Major::K) {
      copy(rank * box * 128, k, mn + rank * box);
    } else {
      constexpr int STEP = BY_PANELS ? PEERS : 1;
      const int first = BY_PANELS ? rank : 0, row = BY_PANELS ? 0 : rank * DEPTH;
#pragma unroll
      for (int i = 0; i < PANELS / STEP; ++i)
        copy((first + i * STEP) * BYTES_PER_64_MN + row * 128, mn + (first + i * STEP) * 64,
             k + row);
    }
  }

  // Block `rank` of the PEERS loads its share for all of them, which are `ctas` of the cluster.
  // `once`: nobody else will read it.
  static __device__ __forceinline__ void load(uint32_t to, const CUtensorMap* map, uint32_t barrier,
                                              int rank, uint16_t ctas, int mn, int k, int box,
                                              bool once) {
    each(rank, mn, k, box, [&](uint32_t at, int inner, int outer) {
      if constexpr (PEERS > 1)
        cp_async_bulk_tensor_2d_multicast(to + at, map, barrier, inner, outer, ctas);
      else if (once)
        cp_async_bulk_tensor_2d_evict_first(to + at, map, barrier, inner, outer);
      else
        cp_async_bulk_tensor_2d(to + at, map, barrier, inner, outer);
    });
  }

  // Prefetches every reader-th step of `steps` into the L2, from step `reader` on.
  static __device__ __forceinline__ void prefetch_l2(const CUtensorMap* map, int mn, int box,
                                                   int first, int steps, int reader,
                                                   int readers) {
    for (int step = reader; step < steps; step += readers)
      for (int rank = 0; rank < PEERS; ++rank)
        each(rank, mn, (first + step) * BLOCK_K, box, [&](uint32_t, int inner, int outer) {
          cp_async_bulk_prefetch_tensor_2d(map, inner, outer);
        });
  }
};

// The product, as a block sees it.
struct Wave {
  int M, N, k_tiles;
  int splits;               // parts of K
  int rows, cols;           // tiles of C, with those that fill up clusters
  bool a_once, b_once;      // the blocks that read a panel of the operand are one cluster
  int a_box, b_box;         // rows of a box of a K-major operand
  bool pdl;                 // the next kernel may start while this one runs
  int sums_rows;            // of the workspace, for each part of K
  Divisor by_tiles, by_splits, by_side;  // the shorter side of C, in clusters

  // The corner of a block's tile: along the shorter side first, so that who reads the same is near.
  __device__ Tile corner(int index, InCluster block) const {
    const int high = rows / CLUSTER_M, wide = cols / CLUSTER_N, at = index / CLUSTER;
    const int far = by_side.quotient(at), near = at - far * min(high, wide);
    const Tile tile = high <= wide ? Tile{near, far} : Tile{far, near};
    return {(tile.m * CLUSTER_M + block.m) * BLOCK_M, (tile.n * CLUSTER_N + block.n) * BLOCK_N};
  }
};

}  // namespace
