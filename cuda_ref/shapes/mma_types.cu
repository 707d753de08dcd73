// C[M, N] = A[M, K] B[K, N] in float32 by tf32, and in float64, of operands as they lie.
//
// ADDS           no copy. wgmma reads tf32 along K alone, so that wgmma_types writes the B of x @ W
//                anew before it multiplies, which for few rows takes longer than the product.
//                mma.sync takes its elements from registers, and those come out of shared memory in
//                any order. Elements of 4 and 8 bytes are what cp.async copies, so rows may begin
//                anywhere. Tiles are small, for a C of few rows or columns, and K is divided where
//                C has few of them (sm90/parts.cuh).
// STILL MISSING  the rate of wgmma, which is about twice that of mma.sync: wgmma_types and, for
//                float64 in whole vectors, mma_float64 are faster where C is large.
//
// grid   one block per BLOCK_M x BLOCK_N tile of C, in groups of GROUP_M tile rows, matrix after
//        matrix, or part of K after part
// block  4 warps step through K by 128 bytes, over NUM_STAGES stages; 2 to 4 blocks to an SM
// warp   a part of the tile, of 16 x 16 parts: 2 mma each for every 8 along K
// loop   mma_types/product.cuh: mma_odd.cu has it too
#include "mma_types/product.cuh"
#include "mma_types/sides.cuh"

#ifndef TCGEMM_BLOCK_M  // the tile of a build that names none
#define TCGEMM_BLOCK_M 64
#define TCGEMM_BLOCK_N 64
#define TCGEMM_NUM_STAGES 4
#endif

namespace {

constexpr int GROUP_M = 8;
constexpr int STEP_BYTES = 128;

template <typename Real, bool A_T, bool B_T>
struct TypesRing {
  static constexpr int BLOCK_M = TCGEMM_BLOCK_M, BLOCK_N = TCGEMM_BLOCK_N;
  static constexpr int GROUP_M = ::GROUP_M, NUM_STAGES = TCGEMM_NUM_STAGES;
  static constexpr int WARPS = 4, THREADS = 32 * WARPS;
  static constexpr int WARPS_N = BLOCK_M == PART ? WARPS : BLOCK_N == PART ? 1 : 2;
  static constexpr int STEP_K = STEP_BYTES / sizeof(Real);
  using A = AnySide<Real, !A_T, true, BLOCK_M, STEP_K, THREADS>;
  using B = AnySide<Real, B_T, false, BLOCK_N, STEP_K, THREADS>;
  static constexpr int STAGE_BYTES = A::Tile::BYTES + B::Tile::BYTES;
  static constexpr int BLOCKS_PER_SM = STAGE_BYTES > 16384 ? 2 : STAGE_BYTES > 10240 ? 3 : 4;
  static constexpr int SHARED_BYTES = NUM_STAGES * STAGE_BYTES;  // later on for a tile of sums
  static_assert(BLOCK_M * (BLOCK_N * 8 + 16) <= SHARED_BYTES);
};

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  return launch_product<TypesRing>(with_rows_of_c(asked), stream);
}
