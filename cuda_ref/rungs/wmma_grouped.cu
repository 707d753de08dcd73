// C[M, N] = A[M, K] B[K, N] on the tensor cores, in an order and a layout that caches like.
//
// ADDS           grouped ordering: tiles of C are visited down groups of GROUP_M rows, so that the
//                blocks in flight share rows of A and columns of B in L2. PAD: rows in shared
//                memory are 8 elements longer, so the eight 16-byte pieces that a warp reads at
//                once lie in different banks (40 elements are 80 bytes, so they begin at 0, 80,
//                32, 112, 64, 16, 96 and 48 mod 128). Every other padded row begins in the middle
//                of a 32-byte sector, so the copies go through the L1: past it the L2 would send
//                those rows twice. BLOCK_K 32 halves the barriers. Fragments are loaded once and
//                used twice each.
// STILL MISSING  sizes that are no multiple of the tile, rows that are not 16-byte aligned, and a
//                tile large enough for Hopper: at 32 FLOP per byte the copies from L2 alone set the
//                pace. See wmma_any.cu.
//
// grid   one block per BLOCK_M x BLOCK_N tile of C, in groups of GROUP_M tile rows
// block  2 x 2 warps step through K by BLOCK_K, with NUM_STAGES tiles of A and of B
// warp   WARP_M x WARP_N of C: 2 x 2 mma tiles
//
// Takes M and N that are multiples of 64, K of 32, and rows (of A and B in their storage order, of
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
constexpr int BLOCK_K = 32;
constexpr int WARP_M = 32;
constexpr int WARP_N = 32;
constexpr int MMA_M = 16;
constexpr int MMA_N = 16;
constexpr int MMA_K = 16;
constexpr int NUM_STAGES = 2;
constexpr int GROUP_M = 16;
constexpr int PAD = 8;
// Six blocks leave 80 registers a thread: enough, where the compiler's own guess of 72 spills.
constexpr int BLOCKS_PER_SM = 6;
constexpr int WARPS_N = BLOCK_N / WARP_N;
constexpr int THREADS = BLOCK_M / WARP_M * WARPS_N * 32;
constexpr int TILES_M = WARP_M / MMA_M;
constexpr int TILES_N = WARP_N / MMA_N;
// Elements of one tile in shared memory, for the storage order that has more rows to pad.
constexpr int A_TILE = BLOCK_M * (BLOCK_K + PAD);
constexpr int B_TILE = BLOCK_N * (BLOCK_K + PAD);
constexpr int STAGE_BYTES = (A_TILE + B_TILE) * 2;
constexpr int C_LD = BLOCK_N + PAD;
constexpr int C_BYTES = BLOCK_M * C_LD * 4;
// The tile of C takes the place of the stages once they are used up.
constexpr int STAGES_BYTES = NUM_STAGES * STAGE_BYTES;
constexpr int SHARED_BYTES = STAGES_BYTES > C_BYTES ? STAGES_BYTES : C_BYTES;

static_assert(BLOCK_K * (BLOCK_M + PAD) <= A_TILE && BLOCK_K * (BLOCK_N + PAD) <= B_TILE);
static_assert(BLOCK_M * BLOCK_K % (THREADS * VECTOR) == 0);
static_assert(BLOCK_K * BLOCK_N % (THREADS * VECTOR) == 0);

// Where in a tile of rows of INNER elements the thread's first vector lies.
template <int INNER>
__device__ int first_row() {
  return threadIdx.x * VECTOR / INNER;
}
template <int INNER>
__device__ int first_col() {
  return threadIdx.x * VECTOR % INNER;
}

// Copies OUTER rows of INNER elements, `stride` elements apart, to rows INNER + PAD apart. `from`
// is the thread's first vector; it stays in that column, so that only the row changes.
template <int OUTER, int INNER, typename In>
__device__ void copy_tile(In* tile, const In* from, int64_t stride) {
  constexpr int ROWS = THREADS * VECTOR / INNER;
  In* to = &tile[first_row<INNER>() * (INNER + PAD) + first_col<INNER>()];
#pragma unroll
  for (int i = 0; i < OUTER; i += ROWS) cp_async_ca_16(to + i * (INNER + PAD), from + i * stride);
}

template <typename In, typename Out, bool A_T, bool B_T>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    wmma_grouped_kernel(Gemm gemm, int64_t lda, int64_t ldb, int tiles_m, int tiles_n) {
  __shared__ alignas(128) unsigned char shared[SHARED_BYTES];
  In* a_tiles = reinterpret_cast<In*>(shared);
  In* b_tiles = a_tiles + NUM_STAGES * A_TILE;
  constexpr int A_LD = (A_T ? BLOCK_M : BLOCK_K) + PAD;
  constexpr int B_LD = (B_T ? BLOCK_K : BLOCK_N) + PAD;

  const int warp = threadIdx.x / 32;
  const int warp_m = warp / WARPS_N * WARP_M;
  const int warp_n = warp % WARPS_N * WARP_N;
  const Tile tile = grouped_tile<GROUP_M>(blockIdx.x, tiles_m, tiles_n);
  const int64_t m0 = static_cast<int64_t>(tile.m) * BLOCK_M;
  const int64_t n0 = static_cast<int64_t>(tile.n) * BLOCK_N;
  const In* a = static_cast<const In*>(gemm.a.data) + m0 * gemm.a.row_stride +
                first_row<A_LD - PAD>() * lda + first_col<A_LD - PAD>();
  const In* b = static_cast<const In*>(gemm.b.data) + n0 * gemm.b.col_stride +
                first_row<B_LD - PAD>() * ldb + first_col<B_LD - PAD>();

  // Each operand lies in shared memory in its own storage order.
  const auto load_stage = [&](int stage) {
    copy_tile<A_T ? BLOCK_K : BLOCK_M, A_LD - PAD>(a_tiles + stage * A_TILE, a, lda);
    copy_tile<B_T ? BLOCK_N : BLOCK_K, B_LD - PAD>(b_tiles + stage * B_TILE, b, ldb);
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
    for (int k = 0; k < BLOCK_K; k += MMA_K) {
      wmma::fragment<wmma::matrix_a, MMA_M, MMA_N, MMA_K, In, Layout<A_T>> a_fragments[TILES_M];
      wmma::fragment<wmma::matrix_b, MMA_M, MMA_N, MMA_K, In, Layout<B_T>> b_fragments[TILES_N];
#pragma unroll
      for (int i = 0; i < TILES_M; ++i) {
        const int m = warp_m + i * MMA_M;
        load_fragment(a_fragments[i], &a_tile[A_T ? k * A_LD + m : m * A_LD + k], A_LD);
      }
#pragma unroll
      for (int j = 0; j < TILES_N; ++j) {
        const int n = warp_n + j * MMA_N;
        load_fragment(b_fragments[j], &b_tile[B_T ? n * B_LD + k : k * B_LD + n], B_LD);
      }
#pragma unroll
      for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
        for (int j = 0; j < TILES_N; ++j) {
          wmma::mma_sync(accumulators[i][j], a_fragments[i], b_fragments[j], accumulators[i][j]);
        }
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
      const int at = (warp_m + i * MMA_M) * C_LD + warp_n + j * MMA_N;
      wmma::store_matrix_sync(&c_tile[at], accumulators[i][j], C_LD, wmma::mem_row_major);
    }
  }
  __syncthreads();
  Out* c = static_cast<Out*>(gemm.c.data) + m0 * gemm.c.row_stride + n0;
#pragma unroll
  for (int i = 0; i < BLOCK_M * BLOCK_N / (THREADS * OUT_VECTOR<Out>); ++i) {
    const int index = (threadIdx.x + i * THREADS) * OUT_VECTOR<Out>;
    const int row = index / BLOCK_N;
    const int col = index % BLOCK_N;
    store_vector(&c[row * gemm.c.row_stride + col], &c_tile[row * C_LD + col]);
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
          wmma_grouped_kernel<decltype(in), decltype(out), a_t.value, b_t.value>, tiles_m,
          tiles_n, dim3(THREADS), 0, stream, gemm, leading_dimension(gemm.a),
          leading_dimension(gemm.b), static_cast<int>(tiles_m), static_cast<int>(tiles_n));
    });
  });
}
