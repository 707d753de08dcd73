// C[M, N] = A[M, K] B[K, N] on the tensor cores: one warp per 16 x 16 tile of C.
//
// ADDS           WMMA. A warp loads a 16 x 16 fragment of A and one of B straight from global
//                memory and multiplies them with one mma_sync: 4,096 multiply-adds, where a thread
//                of tiled.cu did one at a time. The layouts nn, nt, tn and tt are template
//                arguments of the fragments: no operand is copied or transposed.
// STILL MISSING  shared memory. Four warps read the same fragment of A and four the same of B, and
//                each of their loads touches eight rows, which the L1 looks up one a clock: it sets
//                the pace. And each warp waits for its own loads. See wmma_double_buffered.cu.
//
// grid   one block per BLOCK_M x BLOCK_N tile of C, row after row
// block  4 x 4 warps
// warp   one MMA_M x MMA_N tile, stepping through K by MMA_K
//
// Takes M, N and K that are multiples of 16, A and B with 32-byte aligned addresses and leading
// dimensions that are multiples of 8 elements: WMMA loads nothing else. C may lie anywhere.
#include "tile/convert.cuh"
#include "tile/order.cuh"
#include "host/select.cuh"

namespace {

using namespace tcgemm;
namespace wmma = nvcuda::wmma;

constexpr int MMA_M = 16;
constexpr int MMA_N = 16;
constexpr int MMA_K = 16;
constexpr int WARPS_M = 4;
constexpr int WARPS_N = 4;
constexpr int BLOCK_M = WARPS_M * MMA_M;
constexpr int BLOCK_N = WARPS_N * MMA_N;
constexpr int THREADS = WARPS_M * WARPS_N * 32;

template <typename In, typename Out, bool A_T, bool B_T>
__global__ void __launch_bounds__(THREADS)
    wmma_kernel(Gemm gemm, int64_t lda, int64_t ldb, int tiles_n) {
  __shared__ alignas(32) float c_tile[WARPS_M * WARPS_N][MMA_M * MMA_N];

  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const Tile tile = row_major_tile(blockIdx.x, tiles_n);
  const int64_t m = static_cast<int64_t>(tile.m) * BLOCK_M + warp / WARPS_N * MMA_M;
  const int64_t n = static_cast<int64_t>(tile.n) * BLOCK_N + warp % WARPS_N * MMA_N;
  // A whole warp leaves together, and no barrier of the block follows.
  if (m >= gemm.c.rows || n >= gemm.c.cols) return;

  const In* a = static_cast<const In*>(gemm.a.data) + m * gemm.a.row_stride;
  const In* b = static_cast<const In*>(gemm.b.data) + n * gemm.b.col_stride;
  const int64_t a_step = MMA_K * gemm.a.col_stride;
  const int64_t b_step = MMA_K * gemm.b.row_stride;

  wmma::fragment<wmma::matrix_a, MMA_M, MMA_N, MMA_K, In, Layout<A_T>> a_fragment;
  wmma::fragment<wmma::matrix_b, MMA_M, MMA_N, MMA_K, In, Layout<B_T>> b_fragment;
  wmma::fragment<wmma::accumulator, MMA_M, MMA_N, MMA_K, float> accumulator;
  wmma::fill_fragment(accumulator, 0.0f);
#pragma unroll 4
  for (int64_t k = 0; k < gemm.a.cols; k += MMA_K) {
    wmma::load_matrix_sync(a_fragment, a, static_cast<unsigned>(lda));
    wmma::load_matrix_sync(b_fragment, b, static_cast<unsigned>(ldb));
    wmma::mma_sync(accumulator, a_fragment, b_fragment, accumulator);
    a += a_step;
    b += b_step;
  }

  // Which lane holds which element of the accumulator is not specified, so it goes through shared
  // memory to be narrowed and stored with C's own strides.
  float* staged = c_tile[warp];
  wmma::store_matrix_sync(staged, accumulator, MMA_N, wmma::mem_row_major);
  __syncwarp();
  Out* c = static_cast<Out*>(gemm.c.data) + m * gemm.c.row_stride + n * gemm.c.col_stride;
#pragma unroll
  for (int i = 0; i < MMA_M * MMA_N / 32; ++i) {
    const int index = lane + i * 32;
    const int row = index / MMA_N;
    const int col = index % MMA_N;
    c[row * gemm.c.row_stride + col * gemm.c.col_stride] = from_float<Out>(staged[index]);
  }
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = with_rows_of_c(asked);
  const int64_t tiles_m = ceil_div(gemm.c.rows, BLOCK_M);
  const int64_t tiles_n = ceil_div(gemm.c.cols, BLOCK_N);
  return with_fragment_types(gemm, [&](auto in, auto out) {
    return with_layouts(gemm, [&](auto a_t, auto b_t) {
      return launch_tiles(wmma_kernel<decltype(in), decltype(out), a_t.value, b_t.value>, tiles_m,
                          tiles_n, dim3(THREADS), 0, stream, gemm, leading_dimension(gemm.a),
                          leading_dimension(gemm.b), static_cast<int>(tiles_n));
    });
  });
}
