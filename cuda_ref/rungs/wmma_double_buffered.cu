// C[M, N] = A[M, K] B[K, N] on the tensor cores, the next tiles of A and B on their way meanwhile.
//
// ADDS           shared memory with double buffering. While the warps multiply the tiles in one
//                half of shared memory, cp.async fills the other half in 16-byte vectors that pass
//                no register. A block reads each element once per tile: 32 FLOP per byte of global
//                memory, and a warp tile of 32 x 32 uses every fragment twice. C goes out through
//                shared memory in 16-byte vectors.
// STILL MISSING  rows of 16 and 64 elements, 32 and 128 bytes apart, meet in the same banks: up to
//                eight lanes wait for each other. The row-major order of tiles reads all of B for
//                each row of tiles. BLOCK_K 16 means one barrier for 4 mma_sync of a warp. See
//                wmma_grouped.cu.
//
// grid   one block per BLOCK_M x BLOCK_N tile of C, row after row
// block  2 x 2 warps step through K by BLOCK_K, with NUM_STAGES tiles of A and of B
// warp   WARP_M x WARP_N of C: 2 x 2 mma tiles
//
// Takes M and N that are multiples of 64, K of 16, and rows (of A and B in their storage order, of
// C in its own) that begin at multiples of 16 bytes.
#include "tile/convert.cuh"
#include "ptx/cp_async.cuh"
#include "tile/fragment.cuh"
#include "tile/order.cuh"
#include "host/select.cuh"

namespace {

using namespace tcgemm;
namespace wmma = nvcuda::wmma;

constexpr int BLOCK_M = 64;
constexpr int BLOCK_N = 64;
constexpr int BLOCK_K = 16;
constexpr int WARP_M = 32;
constexpr int WARP_N = 32;
constexpr int MMA_M = 16;
constexpr int MMA_N = 16;
constexpr int MMA_K = 16;
constexpr int NUM_STAGES = 2;
constexpr int WARPS_N = BLOCK_N / WARP_N;
// Leaves 80 registers to a thread; with more blocks some would have to be spilled.
constexpr int BLOCKS_PER_SM = 6;
constexpr int THREADS = BLOCK_M / WARP_M * WARPS_N * 32;
constexpr int TILES_M = WARP_M / MMA_M;
constexpr int TILES_N = WARP_N / MMA_N;
constexpr int A_TILE = BLOCK_M * BLOCK_K;
constexpr int B_TILE = BLOCK_K * BLOCK_N;
constexpr int STAGE_BYTES = (A_TILE + B_TILE) * 2;
constexpr int C_BYTES = BLOCK_M * BLOCK_N * 4;
// The tile of C takes the place of the stages once they are used up.
constexpr int STAGES_BYTES = NUM_STAGES * STAGE_BYTES;
constexpr int SHARED_BYTES = STAGES_BYTES > C_BYTES ? STAGES_BYTES : C_BYTES;

static_assert(BLOCK_K == MMA_K, "one mma step per stage");
static_assert(A_TILE % (THREADS * VECTOR) == 0 && B_TILE % (THREADS * VECTOR) == 0);

// Copies OUTER rows of INNER elements, `stride` elements apart, to rows without a gap.
template <int OUTER, int INNER, typename In>
__device__ void copy_tile(In* tile, const In* from, int64_t stride) {
#pragma unroll
  for (int i = 0; i < OUTER * INNER / (THREADS * VECTOR); ++i) {
    const int index = (threadIdx.x + i * THREADS) * VECTOR;
    cp_async_16(&tile[index], &from[index / INNER * stride + index % INNER]);
  }
}

template <typename In, typename Out, bool A_T, bool B_T>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    wmma_double_buffered_kernel(Gemm gemm, int64_t lda, int64_t ldb, int tiles_n) {
  __shared__ alignas(128) unsigned char shared[SHARED_BYTES];
  In* a_tiles = reinterpret_cast<In*>(shared);
  In* b_tiles = a_tiles + NUM_STAGES * A_TILE;
  constexpr int A_LD = A_T ? BLOCK_M : BLOCK_K;
  constexpr int B_LD = B_T ? BLOCK_K : BLOCK_N;

  const int warp = threadIdx.x / 32;
  const int warp_m = warp / WARPS_N * WARP_M;
  const int warp_n = warp % WARPS_N * WARP_N;
  const Tile tile = row_major_tile(blockIdx.x, tiles_n);
  const int64_t m0 = static_cast<int64_t>(tile.m) * BLOCK_M;
  const int64_t n0 = static_cast<int64_t>(tile.n) * BLOCK_N;
  const In* a = static_cast<const In*>(gemm.a.data) + m0 * gemm.a.row_stride;
  const In* b = static_cast<const In*>(gemm.b.data) + n0 * gemm.b.col_stride;

  // Each operand lies in shared memory in its own storage order.
  const auto load_stage = [&](int stage) {
    copy_tile<A_T ? BLOCK_K : BLOCK_M, A_LD>(a_tiles + stage * A_TILE, a, lda);
    copy_tile<B_T ? BLOCK_N : BLOCK_K, B_LD>(b_tiles + stage * B_TILE, b, ldb);
    cp_async_commit();
    a += BLOCK_K * gemm.a.col_stride;
    b += BLOCK_K * gemm.b.row_stride;
  };

  wmma::fragment<wmma::accumulator, MMA_M, MMA_N, MMA_K, float> accumulators[TILES_M][TILES_N];
#pragma unroll
  for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
    for (int j = 0; j < TILES_N; ++j) wmma::fill_fragment(accumulators[i][j], 0.0f);
  }

  load_stage(0);
  const int steps = static_cast<int>(gemm.a.cols / BLOCK_K);
  for (int step = 0; step < steps; ++step) {
    const int stage = step % NUM_STAGES;
    cp_async_wait<0>();
    // After this barrier the stage is complete, and everyone is done with the other one.
    __syncthreads();
    if (step + 1 < steps) load_stage(1 - stage);

    const In* a_tile = a_tiles + stage * A_TILE;
    const In* b_tile = b_tiles + stage * B_TILE;
#pragma unroll
    for (int i = 0; i < TILES_M; ++i) {
      wmma::fragment<wmma::matrix_a, MMA_M, MMA_N, MMA_K, In, Layout<A_T>> a_fragment;
      const int m = warp_m + i * MMA_M;
      load_fragment(a_fragment, &a_tile[A_T ? m : m * A_LD], A_LD);
#pragma unroll
      for (int j = 0; j < TILES_N; ++j) {
        wmma::fragment<wmma::matrix_b, MMA_M, MMA_N, MMA_K, In, Layout<B_T>> b_fragment;
        const int n = warp_n + j * MMA_N;
        load_fragment(b_fragment, &b_tile[B_T ? n * B_LD : n], B_LD);
        wmma::mma_sync(accumulators[i][j], a_fragment, b_fragment, accumulators[i][j]);
      }
    }
  }

  // Epilogue: the stages become one float32 tile of C.
  __syncthreads();
  float* c_tile = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
    for (int j = 0; j < TILES_N; ++j) {
      const int at = (warp_m + i * MMA_M) * BLOCK_N + warp_n + j * MMA_N;
      wmma::store_matrix_sync(&c_tile[at], accumulators[i][j], BLOCK_N, wmma::mem_row_major);
    }
  }
  __syncthreads();
  Out* c = static_cast<Out*>(gemm.c.data) + m0 * gemm.c.row_stride + n0;
#pragma unroll
  for (int i = 0; i < BLOCK_M * BLOCK_N / (THREADS * OUT_VECTOR<Out>); ++i) {
    const int index = (threadIdx.x + i * THREADS) * OUT_VECTOR<Out>;
    store_vector(&c[index / BLOCK_N * gemm.c.row_stride + index % BLOCK_N], &c_tile[index]);
  }
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = with_rows_of_c(asked);
  const int64_t tiles_m = gemm.c.rows / BLOCK_M;
  const int64_t tiles_n = gemm.c.cols / BLOCK_N;
  return with_fragment_types(gemm, [&](auto in, auto out) {
    return with_layouts(gemm, [&](auto a_t, auto b_t) {
      return launch_tiles(
          wmma_double_buffered_kernel<decltype(in), decltype(out), a_t.value, b_t.value>, tiles_m,
          tiles_n, dim3(THREADS), 0, stream, gemm, leading_dimension(gemm.a),
          leading_dimension(gemm.b), static_cast<int>(tiles_n));
    });
  });
}
