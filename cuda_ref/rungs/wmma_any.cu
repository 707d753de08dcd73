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
#include "host/build_case.cuh"
#include "tile/fragment.cuh"
#include "tile/order.cuh"
#include "host/select.cuh"
#include "tile/store_tile.cuh"
#include "tile/predicated_loader.cuh"

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

template <bool FUSED, typename In, typename Out, bool A_T, bool B_T>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    wmma_any_kernel(Operand a, Operand b, Matrix c, bool c_vectors, Epilogue<float> epilogue,
                    int64_t K, int tiles_m, int tiles_n) {
  In* a_tiles = reinterpret_cast<In*>(dynamic_shared());
  In* b_tiles = a_tiles + NUM_STAGES * A_TILE;
  constexpr int A_LD = (A_T ? BLOCK_M : BLOCK_K) + PAD;
  constexpr int B_LD = (B_T ? BLOCK_K : BLOCK_N) + PAD;

  const int warp = threadIdx.x / 32;
  const int warp_m = warp / WARPS_N * WARP_M;
  const int warp_n = warp % WARPS_N * WARP_N;
  const int batch = blockIdx.x / (tiles_m * tiles_n);
  const Tile tile = grouped_tile<GROUP_M>(blockIdx.x % (tiles_m * tiles_n), tiles_m, tiles_n);
  const int64_t m0 = static_cast<int64_t>(tile.m) * BLOCK_M;
  const int64_t n0 = static_cast<int64_t>(tile.n) * BLOCK_N;

  const In* a_data = static_cast<const In*>(a.data) + batch * a.batch_stride;
  const In* b_data = static_cast<const In*>(b.data) + batch * b.batch_stride;

  const auto load_stage = [&](int stage, int64_t k0) {
    copy_tile<THREADS, A_T ? BLOCK_K : BLOCK_M, A_LD - PAD, A_LD>(
        a_tiles + stage * A_TILE, a, a_data, A_T ? k0 : m0, A_T ? m0 : k0);
    copy_tile<THREADS, B_T ? BLOCK_N : BLOCK_K, B_LD - PAD, B_LD>(
        b_tiles + stage * B_TILE, b, b_data, B_T ? n0 : k0, B_T ? k0 : n0);
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
  store_tile<FUSED, THREADS, BLOCK_M, BLOCK_N, C_LD, Out>(c_tile, c, c_vectors, epilogue, m0, n0,
                                                          batch);
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = with_rows_of_c(asked);
  const int64_t tiles_m = ceil_div(gemm.c.rows, BLOCK_M);
  const int64_t tiles_n = ceil_div(gemm.c.cols, BLOCK_N);
  const auto with = [&](auto kernel) {
    return launch_tiles(kernel, gemm.batch * tiles_m, tiles_n, dim3(THREADS), SHARED_BYTES, stream,
                        operand(gemm.a, gemm.batch, 2), operand(gemm.b, gemm.batch, 2), gemm.c,
                        rows_are_vectors(gemm.c, gemm.batch, gemm.out), epilogue_of<float>(gemm),
                        gemm.a.cols, static_cast<int>(tiles_m), static_cast<int>(tiles_n));
  };
  return with_fragment_types(gemm, [&](auto in, auto out) {
    return with_layouts(gemm, [&](auto a_t, auto b_t) {
      using In = decltype(in);
      using Out = decltype(out);
      if constexpr (BUILT<In, true>) {
        if (is_plain(gemm)) return with(wmma_any_kernel<false, In, Out, a_t.value, b_t.value>);
      }
      if constexpr (BUILT<In, false>) {
        return with(wmma_any_kernel<true, In, Out, a_t.value, b_t.value>);
      }
      return static_cast<int>(cudaErrorNotSupported);
    });
  });
}
