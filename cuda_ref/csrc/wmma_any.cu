// C[M, N] = A[M, K] B[K, N] on the tensor cores, for any size, stride and alignment.
//
// ADDS           checked copies. Where an operand's rows are 16-byte aligned, cp.async copies the
//                vectors that lie inside; all else the threads copy element by element, with zeros
//                outside. Both operands are zero past K: no Inf or NaN of stale memory meets
//                a zero. A warp tile of 64 x 64 (64 FLOP per byte from global and 32 from shared
//                memory) and NUM_STAGES stages, all but one of them on their way.
// STILL MISSING  wgmma. On Hopper these mma instructions reach about 63 % of the tensor cores'
//                rate, and every operand passes through registers on the way. The rungs for sm_90
//                go on from here.
//
// grid   one block per BLOCK_M x BLOCK_N tile of C, in groups of GROUP_M tile rows
// block  2 x 2 warps step through K by BLOCK_K
// warp   WARP_M x WARP_N of C: 4 x 4 mma tiles. 128 registers of a thread hold accumulators, so two
//        blocks of 128 threads fill the registers of an SM; 4 stages are 80 KB of shared memory.
#include "convert.cuh"
#include "copy.cuh"
#include "fragment.cuh"
#include "order.cuh"
#include "select.cuh"

namespace {

using namespace tcgemm;
namespace wmma = nvcuda::wmma;

constexpr int BLOCK_M = 128;
constexpr int BLOCK_N = 128;
constexpr int BLOCK_K = 32;
constexpr int WARP_M = 64;
constexpr int WARP_N = 64;
constexpr int MMA_M = 16;
constexpr int MMA_N = 16;
constexpr int MMA_K = 16;
constexpr int NUM_STAGES = 4;
constexpr int GROUP_M = 8;
constexpr int PAD = 8;
constexpr int BLOCKS_PER_SM = 2;
constexpr int WARPS_N = BLOCK_N / WARP_N;
constexpr int THREADS = BLOCK_M / WARP_M * WARPS_N * 32;
constexpr int TILES_M = WARP_M / MMA_M;
constexpr int TILES_N = WARP_N / MMA_N;
// Elements of one tile in shared memory, for the storage order that has more rows to pad.
constexpr int A_TILE = BLOCK_M * (BLOCK_K + PAD);
constexpr int B_TILE = BLOCK_N * (BLOCK_K + PAD);
constexpr int STAGE_BYTES = (A_TILE + B_TILE) * 2;
constexpr int C_LD = BLOCK_N + PAD / 2;
constexpr int C_BYTES = BLOCK_M * C_LD * 4;
// The tile of C takes the place of the stages once they are used up.
constexpr int STAGES_BYTES = NUM_STAGES * STAGE_BYTES;
constexpr int SHARED_BYTES = STAGES_BYTES > C_BYTES ? STAGES_BYTES : C_BYTES;

static_assert(BLOCK_K * (BLOCK_M + PAD) <= A_TILE && BLOCK_K * (BLOCK_N + PAD) <= B_TILE);
static_assert(THREADS % BLOCK_M == 0 && THREADS % BLOCK_N == 0 && THREADS % BLOCK_K == 0);
static_assert(BLOCK_M * BLOCK_K % (THREADS * VECTOR) == 0);
static_assert(BLOCK_K * BLOCK_N % (THREADS * VECTOR) == 0);

// A or B in its storage order: `inner` is the dimension along which elements are neighbours, if
// they are along any. `vectors`: every row begins at a multiple of 16 bytes.
struct Operand {
  const void* data;
  int64_t outer, inner;
  int64_t outer_stride, inner_stride;
  bool vectors;
};

__device__ inline int clamp(int64_t x, int high) {
  return static_cast<int>(x < 0 ? 0 : x < high ? x : high);
}

// Copies the OUTER x INNER part at (outer0, inner0) to rows INNER + PAD apart, zeros outside the
// operand. The caller commits the cp.async group and meets the barrier that follows. A thread stays
// in its column, so all that changes from copy to copy is the row.
template <int OUTER, int INNER, typename In>
__device__ void copy_tile(In* tile, const Operand& from, int64_t outer0, int64_t inner0) {
  constexpr int WIDTH = INNER + PAD;
  const int rows = clamp(from.outer - outer0, OUTER);
  const In* data = static_cast<const In*>(from.data) + outer0 * from.outer_stride;
  if (from.vectors) {
    constexpr int ROWS = THREADS * VECTOR / INNER;
    const int row = threadIdx.x * VECTOR / INNER;
    const int col = threadIdx.x * VECTOR % INNER;
    const int cols = clamp(from.inner - inner0 - col, VECTOR);
    const In* source = data + row * from.outer_stride + inner0 + col;
    In* to = &tile[row * WIDTH + col];
    if (rows == OUTER && from.inner - inner0 >= INNER) {
#pragma unroll
      for (int i = 0; i < OUTER; i += ROWS, source += ROWS * from.outer_stride) {
        cp_async_16(to + i * WIDTH, source);
      }
      return;
    }
#pragma unroll 1
    for (int i = 0; i < OUTER; i += ROWS, source += ROWS * from.outer_stride) {
      const int inside = row + i < rows ? cols : 0;
      if (inside == VECTOR) cp_async_16(to + i * WIDTH, source);
      for (int e = 0; e < VECTOR && inside < VECTOR; ++e) {
        to[i * WIDTH + e] = e < inside ? source[e] : from_float<In>(0.0f);
      }
    }
  } else {
    constexpr int ROWS = THREADS / INNER;
    const int row = threadIdx.x / INNER;
    const int col = threadIdx.x % INNER;
    const bool inside = inner0 + col < from.inner;
    const In* source = data + row * from.outer_stride + (inner0 + col) * from.inner_stride;
#pragma unroll 8
    for (int i = 0; i < OUTER; i += ROWS) {
      tile[(row + i) * WIDTH + col] = inside && row + i < rows ? *source : from_float<In>(0.0f);
      source += ROWS * from.outer_stride;
    }
  }
}

template <typename In, typename Out, bool A_T, bool B_T>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    wmma_any_kernel(Operand a, Operand b, Matrix c, bool c_vectors, int64_t K, int tiles_m,
                    int tiles_n) {
  In* a_tiles = reinterpret_cast<In*>(dynamic_shared());
  In* b_tiles = a_tiles + NUM_STAGES * A_TILE;
  constexpr int A_LD = (A_T ? BLOCK_M : BLOCK_K) + PAD;
  constexpr int B_LD = (B_T ? BLOCK_K : BLOCK_N) + PAD;

  const int warp = threadIdx.x / 32;
  const int warp_m = warp / WARPS_N * WARP_M;
  const int warp_n = warp % WARPS_N * WARP_N;
  const Tile tile = grouped_tile<GROUP_M>(blockIdx.x, tiles_m, tiles_n);
  const int64_t m0 = static_cast<int64_t>(tile.m) * BLOCK_M;
  const int64_t n0 = static_cast<int64_t>(tile.n) * BLOCK_N;

  const auto load_stage = [&](int stage, int64_t k0) {
    copy_tile<A_T ? BLOCK_K : BLOCK_M, A_LD - PAD>(a_tiles + stage * A_TILE, a, A_T ? k0 : m0,
                                                   A_T ? m0 : k0);
    copy_tile<B_T ? BLOCK_N : BLOCK_K, B_LD - PAD>(b_tiles + stage * B_TILE, b, B_T ? n0 : k0,
                                                   B_T ? k0 : n0);
  };

  wmma::fragment<wmma::accumulator, MMA_M, MMA_N, MMA_K, float> accumulators[TILES_M][TILES_N];
#pragma unroll
  for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
    for (int j = 0; j < TILES_N; ++j) wmma::fill_fragment(accumulators[i][j], 0.0f);
  }

  // Prologue. Each step commits one group, past K an empty one, so that NUM_STAGES - 1 groups are
  // always in flight and the oldest is the one to wait for.
  for (int stage = 0; stage < NUM_STAGES - 1; ++stage) {
    if (stage * BLOCK_K < K) load_stage(stage, stage * BLOCK_K);
    cp_async_commit();
  }

  int stage = 0;
  for (int64_t k0 = 0; k0 < K; k0 += BLOCK_K) {
    cp_async_wait<NUM_STAGES - 2>();
    // After this barrier the stage is complete, and everyone is done with the one before it, which
    // is the next to be filled.
    __syncthreads();
    const int64_t ahead = k0 + (NUM_STAGES - 1) * BLOCK_K;
    if (ahead < K) load_stage(stage == 0 ? NUM_STAGES - 1 : stage - 1, ahead);
    cp_async_commit();

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
    stage = stage == NUM_STAGES - 1 ? 0 : stage + 1;
  }

  // Epilogue: the stages become one float32 tile of C, of which the inside is stored.
  cp_async_wait<0>();
  __syncthreads();
  float* c_tile = reinterpret_cast<float*>(dynamic_shared());
#pragma unroll
  for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
    for (int j = 0; j < TILES_N; ++j) {
      const int at = (warp_m + i * MMA_M) * C_LD + warp_n + j * MMA_N;
      wmma::store_matrix_sync(&c_tile[at], accumulators[i][j], C_LD, wmma::mem_row_major);
    }
  }
  __syncthreads();
  const int rows = clamp(c.rows - m0, BLOCK_M);
  const int cols = clamp(c.cols - n0, BLOCK_N);
  Out* data = static_cast<Out*>(c.data) + m0 * c.row_stride + n0 * c.col_stride;
#pragma unroll 2
  for (int i = 0; i < BLOCK_M * BLOCK_N / (THREADS * OUT_VECTOR<Out>); ++i) {
    const int index = (threadIdx.x + i * THREADS) * OUT_VECTOR<Out>;
    const int row = index / BLOCK_N;
    const int col = index % BLOCK_N;
    if (row >= rows) break;
    const float* from = &c_tile[row * C_LD + col];
    if (c_vectors && col + OUT_VECTOR<Out> <= cols) {
      store_vector(&data[row * c.row_stride + col], from);
    } else {
      for (int e = 0; e < OUT_VECTOR<Out> && col + e < cols; ++e) {
        data[row * c.row_stride + (col + e) * c.col_stride] = from_float<Out>(from[e]);
      }
    }
  }
}

Operand operand(const Matrix& matrix) {
  Operand result = {matrix.data, matrix.rows, matrix.cols, matrix.row_stride, matrix.col_stride,
                    false};
  if (column_major(matrix)) {
    std::swap(result.outer, result.inner);
    std::swap(result.outer_stride, result.inner_stride);
  }
  result.vectors =
      rows_aligned(result.data, result.outer, result.outer_stride, result.inner_stride, 2);
  return result;
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = with_rows_of_c(asked);
  const Matrix& c = gemm.c;
  const int64_t tiles_m = ceil_div(c.rows, BLOCK_M);
  const int64_t tiles_n = ceil_div(c.cols, BLOCK_N);
  return with_fragment_types(gemm, [&](auto in, auto out) {
    const bool c_vectors = rows_aligned(c.data, c.rows, c.row_stride, c.col_stride, sizeof(out));
    return with_layouts(gemm, [&](auto a_t, auto b_t) {
      return launch_tiles(wmma_any_kernel<decltype(in), decltype(out), a_t.value, b_t.value>,
                          tiles_m, tiles_n, dim3(THREADS), SHARED_BYTES, stream,
                          operand(gemm.a), operand(gemm.b), c, c_vectors, gemm.a.cols,
                          static_cast<int>(tiles_m), static_cast<int>(tiles_n));
    });
  });
}
