// C[M, N] = A[M, K] B[K, N] in float32 by tf32, and in float64, of few rows or columns.
//
// ADDS           units of 16 bytes where mma_types copies rows that begin anywhere element by
//                element: a half or a quarter of the copies. A row is copied from the multiple of
//                16 bytes below its first element on, so that it lies shifted in its stage, and
//                who multiplies adds the shift. Tiles are long and narrow: the side of many rows
//                is read once, and more of its bytes are on their way.
// STILL MISSING  16-bit types, whose fragments ldmatrix loads from multiples of 16 bytes alone.
//
// grid   one block per BLOCK_M x BLOCK_N tile of C, in groups of GROUP_M tile rows, matrix after
//        matrix, or part of K after part
// block  4 warps step through K by 32, over NUM_STAGES stages; 2 to 4 blocks to an SM
// warp   a quarter of the tile, of 16 x 16 parts: 2 mma each for every 8 along K
// loop   mma_types/product.cuh: which is that of mma_types.cu
#include "mma_odd/sides.cuh"
#include "mma_types/product.cuh"

#ifndef TCGEMM_BLOCK_M  // of a build that names none
#define TCGEMM_BLOCK_M 64
#define TCGEMM_BLOCK_N 32
#define TCGEMM_NUM_STAGES 4
#endif

namespace {

constexpr int GROUP_M = 8;
constexpr bool A_LONG = TCGEMM_BLOCK_M > TCGEMM_BLOCK_N;  // else B is

template <typename Real, bool A_T, bool B_T>
struct OddRing {
  static constexpr int BLOCK_M = TCGEMM_BLOCK_M, BLOCK_N = TCGEMM_BLOCK_N;
  static constexpr int GROUP_M = ::GROUP_M, NUM_STAGES = TCGEMM_NUM_STAGES;
  static constexpr int WARPS = 4, THREADS = 32 * WARPS;
  static constexpr int WARPS_N = BLOCK_N >= 4 * BLOCK_M ? WARPS : BLOCK_M >= 4 * BLOCK_N ? 1 : 2;
  static constexpr int STEP_K = 32;
  using A = SideOf<A_LONG, Real, !A_T, true, BLOCK_M, STEP_K, THREADS>;
  using B = SideOf<!A_LONG, Real, B_T, false, BLOCK_N, STEP_K, THREADS>;
  static constexpr int STAGE_BYTES = (A::Tile::BYTES + B::Tile::BYTES + 127) / 128 * 128;
  static constexpr int SHARED_BYTES = NUM_STAGES * STAGE_BYTES;  // later on for a tile of sums
  static constexpr int FIT = SM_BYTES / (SHARED_BYTES + 1024);  // blocks that an SM has room for
  static constexpr int BLOCKS_PER_SM = FIT < 1 ? 1 : FIT < 4 ? FIT : 4;
  static_assert(BLOCK_M * (BLOCK_N * int{sizeof(Real)} + 16) <= SHARED_BYTES);
};

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = with_rows_of_c(asked);
  const Operand along = operand(A_LONG ? gemm.a : gemm.b, gemm.batch, 4);
  if (along.inner_stride != 1) return cudaErrorNotSupported;
  return launch_product<OddRing>(gemm, stream);
}
