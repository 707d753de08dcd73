// C[M, N] = A[M, K] B[K, N] on the tensor cores: WMMA at its best.
//
// ADDS           what keeps the tensor cores fed. A block tile of 128 x 256 reads a quarter less
//                than one of 128 x 128; addresses of copies are worked out before the loop, which
//                holds nothing but whole tiles; fragments are double-buffered in registers, so that
//                the next are on their way while the tensor cores work on these.
// STILL MISSING  shared memory as the hardware would have it. WMMA asks for rows at equal
//                distances, so against bank conflicts there is only padding, which puts rows out of
//                step with the sectors of the L2; and it hides where a lane finds its elements, so
//                that every load adds up an address in the loop (mma_multistage.cu).
//
// grid   one block per BLOCK_M x BLOCK_N tile of C, in groups of GROUP_M tile rows, matrix after
//        matrix; one to an SM
// block  2 x 4 warps step through K by BLOCK_K over NUM_STAGES stages
// warp   WARP_M x WARP_N of C: 4 x 4 mma tiles. 128 registers of a thread hold accumulators, and
//        two sets of 32 the fragments
#include "host/build_case.cuh"
#include "tile/fragment.cuh"
#include "tile/order.cuh"
#include "host/select.cuh"
#include "tile/store_tile.cuh"
#include "tile/swizzled_loader.cuh"

namespace {

using namespace tcgemm;
namespace wmma = nvcuda::wmma;

constexpr int BLOCK_M = 128;
constexpr int BLOCK_N = 256;
constexpr int BLOCK_K = 32;
constexpr int WARP_M = 64;
constexpr int WARP_N = 64;
constexpr int MMA_M = 16;
constexpr int MMA_N = 16;
constexpr int MMA_K = 16;
constexpr int NUM_STAGES = 4;
constexpr int GROUP_M = 8;
constexpr int PAD = 8;
constexpr int BLOCKS_PER_SM = 1;
constexpr int WARPS_N = BLOCK_N / WARP_N;
constexpr int THREADS = BLOCK_M / WARP_M * WARPS_N * 32;
constexpr int STEPS = BLOCK_K / MMA_K;
constexpr int TILES_M = WARP_M / MMA_M;
constexpr int TILES_N = WARP_N / MMA_N;
// Bytes of one tile in shared memory, for the storage order that has more rows to pad.
constexpr int A_BYTES = BLOCK_M * (BLOCK_K + PAD) * 2;
constexpr int STAGE_BYTES = A_BYTES + BLOCK_N * (BLOCK_K + PAD) * 2;
constexpr int STAGES_BYTES = NUM_STAGES * STAGE_BYTES;
// The tile of C takes the place of the stages once they are used up. 8 floats more in a row, and
// the 4 rows that half a warp writes meet in no bank.
constexpr int C_LD = BLOCK_N + 8;
constexpr int C_BYTES = BLOCK_M * C_LD * 4;
constexpr int SHARED_BYTES = STAGES_BYTES > C_BYTES ? STAGES_BYTES : C_BYTES;

static_assert(BLOCK_K * (BLOCK_M + PAD) * 2 <= A_BYTES);
static_assert(STEPS % 2 == 0, "step 0 of every stage is in the same set of fragments");

template <bool FUSED, typename In, typename Out, bool A_T, bool B_T>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    wmma_multistage_kernel(Operand a, Operand b, Matrix c, bool c_vectors, Epilogue<float> epilogue,
                          int64_t K, int tiles_m, int tiles_n) {
  using ATile = PaddedTile<In, !A_T, BLOCK_M, BLOCK_K, PAD>;
  using BTile = PaddedTile<In, B_T, BLOCK_N, BLOCK_K, PAD>;
  using ACopies = StageCopies<ATile, THREADS>;
  using BCopies = StageCopies<BTile, THREADS>;
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
  const bool checked = ACopies::divided(a, m0) || BCopies::divided(b, n0);
  const int k_tiles = checked ? 0 : static_cast<int>(K / BLOCK_K);
  const auto load_stage = [&](unsigned char* to, int k_tile) {
    if (k_tile < k_tiles) {
      a_copies.start(to);
      b_copies.start(to + A_BYTES);
    }
    cp_async_commit();
  };

  wmma::fragment<wmma::matrix_a, MMA_M, MMA_N, MMA_K, In, Layout<A_T>> as[2][TILES_M];
  wmma::fragment<wmma::matrix_b, MMA_M, MMA_N, MMA_K, In, Layout<B_T>> bs[2][TILES_N];
  const auto load_fragments = [&](const unsigned char* stage, int step) {
    const In* a_tile = reinterpret_cast<const In*>(stage);
    const In* b_tile = reinterpret_cast<const In*>(stage + A_BYTES);
    const int k = step * MMA_K;
#pragma unroll
    for (int i = 0; i < TILES_M; ++i) {
      const int m = warp_m + i * MMA_M;
      const In* from = &a_tile[A_T ? k * ATile::LD + m : m * ATile::LD + k];
      load_fragment(as[step % 2][i], from, ATile::LD);
    }
#pragma unroll
    for (int j = 0; j < TILES_N; ++j) {
      const int n = warp_n + j * MMA_N;
      const In* from = &b_tile[B_T ? n * BTile::LD + k : k * BTile::LD + n];
      load_fragment(bs[step % 2][j], from, BTile::LD);
    }
  };

  wmma::fragment<wmma::accumulator, MMA_M, MMA_N, MMA_K, float> d[TILES_M][TILES_N];
#pragma unroll
  for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
    for (int j = 0; j < TILES_N; ++j) wmma::fill_fragment(d[i][j], 0.0f);
  }
  const auto multiply = [&](int step) {
#pragma unroll
    for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
      for (int j = 0; j < TILES_N; ++j) {
        wmma::mma_sync(d[i][j], as[step % 2][i], bs[step % 2][j], d[i][j]);
      }
    }
  };

  // Prologue. Each step commits one group, past K an empty one, so that NUM_STAGES - 1 groups are
  // always in flight and the oldest is the one to wait for.
#pragma unroll
  for (int stage = 0; stage < NUM_STAGES - 1; ++stage) {
    load_stage(stages + stage * STAGE_BYTES, stage);
  }
  if (k_tiles > 0) {
    cp_async_wait<NUM_STAGES - 2>();
    __syncthreads();
    load_fragments(stages, 0);
  }

  // Where the stage is that is multiplied, or filled.
  int now = 0, free = STAGES_BYTES - STAGE_BYTES;
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
      multiply(step);
    }
  }

  // What is left of K is less than a tile, or all of it where copies are checked: one at a time.
#pragma unroll 1
  for (int64_t k0 = static_cast<int64_t>(k_tiles) * BLOCK_K; k0 < K; k0 += BLOCK_K) {
    __syncthreads();
    ACopies::copy_checked(stages, a, a_data, m0, k0);
    BCopies::copy_checked(stages + A_BYTES, b, b_data, n0, k0);
    __syncthreads();
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      load_fragments(stages, step);
      multiply(step);
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
      wmma::store_matrix_sync(&c_tile[at], d[i][j], C_LD, wmma::mem_row_major);
    }
  }
  __syncthreads();
  store_tile<FUSED, THREADS, BLOCK_M, BLOCK_N, C_LD, Out>(c_tile, c, c_vectors, epilogue, m0, n0,
                                                          batch);
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = with_rows_of_c(asked);
  const Operand a = operand(gemm.a, gemm.batch, 2), b = operand(gemm.b, gemm.batch, 2);
  if (!a.vectors || !b.vectors) return cudaErrorInvalidValue;
  const int64_t tiles_m = ceil_div(gemm.c.rows, BLOCK_M);
  const int64_t tiles_n = ceil_div(gemm.c.cols, BLOCK_N);
  const auto with = [&](auto kernel) {
    return launch_tiles(kernel, gemm.batch * tiles_m, tiles_n, dim3(THREADS), SHARED_BYTES, stream,
                        a, b, gemm.c, rows_are_vectors(gemm.c, gemm.batch, gemm.out),
                        epilogue_of<float>(gemm), gemm.a.cols, static_cast<int>(tiles_m),
                        static_cast<int>(tiles_n));
  };
  return with_fragment_types(gemm, [&](auto in, auto out) {
    return with_layouts(gemm, [&](auto a_t, auto b_t) {
      using In = decltype(in);
      using Out = decltype(out);
      if constexpr (BUILT<In, true>) {
        if (is_plain(gemm)) {
          return with(wmma_multistage_kernel<false, In, Out, a_t.value, b_t.value>);
        }
      }
      if constexpr (BUILT<In, false>) {
        return with(wmma_multistage_kernel<true, In, Out, a_t.value, b_t.value>);
      }
      return static_cast<int>(cudaErrorNotSupported);
    });
  });
}
