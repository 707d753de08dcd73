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
#include "fragment.cuh"
#include "order.cuh"
#include "select.cuh"
#include "store_tile.cuh"
#include "stage_copies.cuh"
#include "tile_copy.cuh"

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
constexpr int STEPS = BLOCK_K / MMA_K;
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

// What a build is for: the build system compiles one case at a time. By default it is all cases.
template <typename In, bool PLAIN>
constexpr bool BUILT =
#ifdef TCGEMM_IN
    PLAIN == TCGEMM_PLAIN &&
    TCGEMM_IN == static_cast<int>(std::is_same_v<In, __half> ? DType::f16 : DType::bf16);
#else
    true;
#endif

template <bool FUSED, typename In, typename Out, bool A_T, bool B_T>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    wmma_any_kernel(Operand a, Operand b, Matrix c, bool c_vectors, Epilogue<float> epilogue,
                    int64_t K, int tiles_m, int tiles_n) {
  using ATile = PaddedTile<In, !A_T, BLOCK_M, BLOCK_K, PAD>;
  using BTile = PaddedTile<In, B_T, BLOCK_N, BLOCK_K, PAD>;
  using ACopies = StageCopies<ATile, THREADS>;
  using BCopies = StageCopies<BTile, THREADS>;
  constexpr int A_LD = ATile::LD, B_LD = BTile::LD;
  unsigned char* const stages = dynamic_shared();

  const int warp = threadIdx.x / 32;
  const int warp_m = warp / WARPS_N * WARP_M;
  const int warp_n = warp % WARPS_N * WARP_N;
  const int batch = blockIdx.x / (tiles_m * tiles_n);
  const Tile tile = grouped_tile<GROUP_M>(blockIdx.x % (tiles_m * tiles_n), tiles_m, tiles_n);
  const int64_t m0 = static_cast<int64_t>(tile.m) * BLOCK_M;
  const int64_t n0 = static_cast<int64_t>(tile.n) * BLOCK_N;

  const In* a_data = static_cast<const In*>(a.data) + batch * a.batch_stride;
  const In* b_data = static_cast<const In*>(b.data) + batch * b.batch_stride;

  ACopies a_copies(a, a_data, m0);
  BCopies b_copies(b, b_data, n0);
  const int k_tiles = static_cast<int>(ceil_div(K, BLOCK_K));
  const bool whole = a.vectors && b.vectors && !ACopies::divided(a, m0) && !BCopies::divided(b, n0);
  const int whole_tiles = whole ? static_cast<int>(K / BLOCK_K) : 0;
  const auto load_stage = [&](unsigned char* to, int k_tile) {
    const int64_t k0 = static_cast<int64_t>(k_tile) * BLOCK_K;
    In* a_to = reinterpret_cast<In*>(to);
    In* b_to = a_to + A_TILE;
    if (k_tile < whole_tiles) {
      a_copies.start(to);
      b_copies.start(to + A_TILE * 2);
    } else if (k_tile < k_tiles) {
      copy_tile<THREADS, ATile::ROWS, ATile::COLS, A_LD>(a_to, a, a_data, A_T ? k0 : m0,
                                                         A_T ? m0 : k0);
      copy_tile<THREADS, BTile::ROWS, BTile::COLS, B_LD>(b_to, b, b_data, B_T ? n0 : k0,
                                                         B_T ? k0 : n0);
    }
    cp_async_commit();
  };

  wmma::fragment<wmma::matrix_a, MMA_M, MMA_N, MMA_K, In, Layout<A_T>> as[2][TILES_M];
  wmma::fragment<wmma::matrix_b, MMA_M, MMA_N, MMA_K, In, Layout<B_T>> bs[2][TILES_N];
  const int a_first = A_T ? warp_m : warp_m * A_LD;
  const int b_first = A_TILE + (B_T ? warp_n * B_LD : warp_n);
  const auto load_fragments = [&](const unsigned char* stage, int step) {
    const In* a_tile = reinterpret_cast<const In*>(stage) + a_first;
    const In* b_tile = reinterpret_cast<const In*>(stage) + b_first;
    const int k = step * MMA_K;
#pragma unroll
    for (int i = 0; i < TILES_M; ++i) {
      const int m = i * MMA_M;
      load_fragment(as[step % 2][i], &a_tile[A_T ? k * A_LD + m : m * A_LD + k], A_LD);
    }
#pragma unroll
    for (int j = 0; j < TILES_N; ++j) {
      const int n = j * MMA_N;
      load_fragment(bs[step % 2][j], &b_tile[B_T ? n * B_LD + k : k * B_LD + n], B_LD);
    }
  };

  wmma::fragment<wmma::accumulator, MMA_M, MMA_N, MMA_K, float> accumulators[TILES_M][TILES_N];
#pragma unroll
  for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
    for (int j = 0; j < TILES_N; ++j) wmma::fill_fragment(accumulators[i][j], 0.0f);
  }

  // Prologue. Each step commits one group, past K an empty one, so that NUM_STAGES - 1 groups are
  // always in flight and the oldest is the one to wait for.
#pragma unroll
  for (int stage = 0; stage < NUM_STAGES - 1; ++stage) {
    load_stage(stages + stage * STAGE_BYTES, stage);
  }
  cp_async_wait<NUM_STAGES - 2>();
  __syncthreads();
  load_fragments(stages, 0);

  int now = 0, free = STAGES_BYTES - STAGE_BYTES;  // where the stage is that is multiplied, or filled
  for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      if (step + 1 < STEPS) {
        load_fragments(stages + now, step + 1);
        if (step == 0) load_stage(stages + free, k_tile + NUM_STAGES - 1);
      } else {
        // After this barrier the next stage is complete, and everyone has left this one, whose last
        // fragments are in registers. After the last tile fragments are read again and not used.
        cp_async_wait<NUM_STAGES - 2>();
        __syncthreads();
        free = now;
        if (k_tile + 1 < k_tiles) now = now == STAGES_BYTES - STAGE_BYTES ? 0 : now + STAGE_BYTES;
        load_fragments(stages + now, 0);
      }
#pragma unroll
      for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
        for (int j = 0; j < TILES_N; ++j) {
          wmma::mma_sync(accumulators[i][j], as[step % 2][i], bs[step % 2][j], accumulators[i][j]);
        }
      }
    }
  }

  // Epilogue: the stages become one float32 tile of C, of which the inside is stored.
  cp_async_wait<0>();
  __syncthreads();
  float* c_tile = reinterpret_cast<float*>(stages);
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
