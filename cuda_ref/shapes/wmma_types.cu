// C[M, N] = A[M, K] B[K, N] for every type that WMMA multiplies, in all of its shapes.
//
// ADDS           the types: float16 (also summed in float16), bfloat16, int8 and uint8 into int32,
//                float32 rounded to tf32 or split into two tf32 numbers, float64. The loop is that
//                of wmma_any. What a type changes is the bytes: BLOCK_K is 64 bytes of a row, and
//                the padding suits the loads that its fragments become.
// STILL MISSING  8-bit floats, which WMMA does not have, and the rate of wgmma. 8-bit integers that
//                are stored across K (A transposed, B not) are gathered byte by byte.
//
// grid   one block per BLOCK_M x BLOCK_N tile of C, in groups of GROUP_M tile rows, matrix after
//        matrix
// block  2 x 2 warps step through K by 64 bytes: 64 int8, 32 float16, 16 float32, 8 float64
// warp   64 x 64 of C, whose accumulators fill 128 registers of a thread; 64 x 32 where float64
//        fills as many or 3 x tf32 needs the room for its parts
// mma    16 x 16 x 16, 32 x 8 x 16 or 8 x 32 x 16; 16 x 16 x 8 of tf32, 8 x 8 x 4 of
//        float64
#include "tile/fragment.cuh"
#include "tile/order.cuh"
#include "host/select.cuh"
#include "tile/store_tile.cuh"
#include "tile/tf32.cuh"
#include "tile/predicated_loader.cuh"

// What a build is for: the build system compiles one case at a time. By default it is all cases.
#if !defined(TCGEMM_IN)
#define TCGEMM_BUILT(IN, COMPUTE, SQUARE) true
#else
#define TCGEMM_BUILT(IN, COMPUTE, SQUARE) \
  (int(IN) == TCGEMM_IN && int(COMPUTE) == TCGEMM_COMPUTE && int(SQUARE) == TCGEMM_SQUARE)
#endif

namespace {

using namespace tcgemm;
namespace wmma = nvcuda::wmma;

constexpr int BLOCK_M = 128;
constexpr int WARPS_M = 2;
constexpr int WARPS_N = 2;
constexpr int NUM_STAGES = 4;
constexpr int GROUP_M = 8;
constexpr int BLOCK_K_BYTES = 64;
constexpr int BLOCKS_PER_SM = 2;
constexpr int THREADS = WARPS_M * WARPS_N * 32;
constexpr int WARP_M = BLOCK_M / WARPS_M;

// What the element types In of A and B and Sum of the accumulators decide, and how they are summed.
template <Compute COMPUTE, typename In, typename Sum>
struct Shape {
  static constexpr int BLOCK_N = sizeof(In) == 8 || COMPUTE == Compute::tf32x3 ? 64 : 128;
  static constexpr int BLOCK_K = BLOCK_K_BYTES / sizeof(In);
  static constexpr int WARP_N = BLOCK_N / WARPS_N;
  // Elements that follow each row of a tile in shared memory, stored along K or across, so that no
  // two lanes of a load meet in a bank. ldmatrix reads 8 rows of 16 bytes: an odd number of 16
  // bytes from row to row. float64 loads 4 by 4 elements and tf32 4 rows by 4 pairs of floats, half
  // a warp at a time, and rows 96 bytes apart suit both; stored across K, every second row of
  // floats is to be 8 words further than a multiple of 32.
  template <bool ALONG_K>
  static constexpr int PAD =
      (sizeof(In) < 4 || (sizeof(In) == 4 && !ALONG_K) ? 16 : 32) / sizeof(In);
  static constexpr int most(int a, int b) { return a > b ? a : b; }
  static constexpr int A_TILE =
      most(BLOCK_M * (BLOCK_K + PAD<true>), BLOCK_K * (BLOCK_M + PAD<false>));
  static constexpr int B_TILE =
      most(BLOCK_N * (BLOCK_K + PAD<true>), BLOCK_K * (BLOCK_N + PAD<false>));
  static constexpr int STAGES_BYTES = NUM_STAGES * (A_TILE + B_TILE) * int(sizeof(In));
  // The tile of C takes the place of the stages once they are used up.
  static constexpr int C_LD = BLOCK_N + 16 / int(sizeof(Sum));
  static constexpr int SHARED_BYTES = most(STAGES_BYTES, BLOCK_M * C_LD * int(sizeof(Sum)));
};

template <Compute COMPUTE, typename In, typename Element, typename Sum, int MMA_M, int MMA_N,
          int MMA_K, bool A_T, bool B_T>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    wmma_types_kernel(Operand a, Operand b, Matrix c, bool c_vectors, bool wide,
                      Epilogue<std::conditional_t<sizeof(Sum) == 2, float, Sum>> epilogue,
                      int64_t K, int tiles_m, int tiles_n) {
  using S = Shape<COMPUTE, In, Sum>;
  constexpr int BLOCK_N = S::BLOCK_N, BLOCK_K = S::BLOCK_K;
  constexpr int TILES_M = WARP_M / MMA_M, TILES_N = S::WARP_N / MMA_N;
  constexpr int A_INNER = A_T ? BLOCK_M : BLOCK_K, A_LD = A_INNER + S::template PAD<!A_T>;
  constexpr int B_INNER = B_T ? BLOCK_K : BLOCK_N, B_LD = B_INNER + S::template PAD<B_T>;
  constexpr int PARTS = COMPUTE == Compute::tf32x3 ? 2 : 1;
  In* a_tiles = reinterpret_cast<In*>(dynamic_shared());
  In* b_tiles = a_tiles + NUM_STAGES * S::A_TILE;

  const int warp = threadIdx.x / 32;
  const int warp_m = warp / WARPS_N * WARP_M;
  const int warp_n = warp % WARPS_N * S::WARP_N;
  const int batch = blockIdx.x / (tiles_m * tiles_n);
  const Tile tile = grouped_tile<GROUP_M>(blockIdx.x % (tiles_m * tiles_n), tiles_m, tiles_n);
  const int64_t m0 = static_cast<int64_t>(tile.m) * BLOCK_M;
  const int64_t n0 = static_cast<int64_t>(tile.n) * BLOCK_N;
  const In* a_data = static_cast<const In*>(a.data) + batch * a.batch_stride;
  const In* b_data = static_cast<const In*>(b.data) + batch * b.batch_stride;

  const auto load_stage = [&](int stage, int64_t k0) {
    copy_tile<THREADS, A_T ? BLOCK_K : BLOCK_M, A_INNER, A_LD>(
        a_tiles + stage * S::A_TILE, a, a_data, A_T ? k0 : m0, A_T ? m0 : k0);
    copy_tile<THREADS, B_T ? BLOCK_N : BLOCK_K, B_INNER, B_LD>(
        b_tiles + stage * S::B_TILE, b, b_data, B_T ? n0 : k0, B_T ? k0 : n0);
  };

  using Partials = Fragments<MMA_M, MMA_N, MMA_K, Element, Sum, A_T, B_T>;
  using Accumulator = typename Partials::Sums;
  Accumulator accumulators[TILES_M][TILES_N];
#pragma unroll
  for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
    for (int j = 0; j < TILES_N; ++j) fill_fragment(accumulators[i][j], Sum(0));
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

    const In* a_tile = a_tiles + stage * S::A_TILE;
    const In* b_tile = b_tiles + stage * S::B_TILE;
#pragma unroll
    for (int k = 0; k < BLOCK_K; k += MMA_K) {
      typename Partials::A as[TILES_M][PARTS];
#pragma unroll
      for (int i = 0; i < TILES_M; ++i) {
        const int m = warp_m + i * MMA_M;
        load_fragment(as[i][0], &a_tile[A_T ? k * A_LD + m : m * A_LD + k], A_LD);
        to_parts<COMPUTE>(as[i]);
      }
#pragma unroll
      for (int j = 0; j < TILES_N; ++j) {
        const int n = warp_n + j * MMA_N;
        typename Partials::B bs[PARTS];
        load_fragment(bs[0], &b_tile[B_T ? n * B_LD + k : k * B_LD + n], B_LD);
        to_parts<COMPUTE>(bs);
#pragma unroll
        for (int i = 0; i < TILES_M; ++i) {
          Accumulator& sums = accumulators[i][j];
          if constexpr (PARTS == 1) {
            mma_sync(sums, as[i][0], bs[0], sums);
          } else {
            add_products(sums, as[i], bs);
          }
        }
      }
    }
    stage = stage == NUM_STAGES - 1 ? 0 : stage + 1;
  }

  // Epilogue: the stages become one tile of sums, of which the inside is stored.
  cp_async_wait<0>();
  __syncthreads();
  Sum* c_tile = reinterpret_cast<Sum*>(dynamic_shared());
#pragma unroll
  for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
    for (int j = 0; j < TILES_N; ++j) {
      const int at = (warp_m + i * MMA_M) * S::C_LD + warp_n + j * MMA_N;
      store_matrix_sync(&c_tile[at], accumulators[i][j], S::C_LD, wmma::mem_row_major);
    }
  }
  __syncthreads();
  if constexpr (std::is_same_v<Sum, float> && sizeof(In) == 2) {
    if (!wide) {
      store_tile<true, THREADS, BLOCK_M, BLOCK_N, S::C_LD, In>(c_tile, c, c_vectors, epilogue, m0,
                                                               n0, batch);
      return;
    }
  }
  store_tile<true, THREADS, BLOCK_M, BLOCK_N, S::C_LD, Sum>(c_tile, c, c_vectors, epilogue, m0, n0,
                                                            batch);
}

template <Compute COMPUTE, typename In, typename Element, typename Sum, int MMA_M, int MMA_N,
          int MMA_K>
int start(const Gemm& gemm, cudaStream_t stream) {
  using S = Shape<COMPUTE, In, Sum>;
  using Acc = std::conditional_t<sizeof(Sum) == 2, float, Sum>;
  const int64_t tiles_m = ceil_div(gemm.c.rows, BLOCK_M);
  const int64_t tiles_n = ceil_div(gemm.c.cols, S::BLOCK_N);
  return with_layouts(gemm, [&](auto a_t, auto b_t) {
    return launch_tiles(
        wmma_types_kernel<COMPUTE, In, Element, Sum, MMA_M, MMA_N, MMA_K, a_t.value, b_t.value>,
        gemm.batch * tiles_m, tiles_n, dim3(THREADS), S::SHARED_BYTES, stream,
        operand(gemm.a, gemm.batch, sizeof(In)), operand(gemm.b, gemm.batch, sizeof(In)), gemm.c,
        rows_are_vectors(gemm.c, gemm.batch, gemm.out), gemm.out == DType::f32,
        epilogue_of<Acc>(gemm), gemm.a.cols, static_cast<int>(tiles_m), static_cast<int>(tiles_n));
  });
}

// The types whose fragments have three shapes.
template <DType IN, Compute COMPUTE, typename In, typename Sum>
int start_shape(const Gemm& gemm, cudaStream_t stream) {
  const bool square = gemm.mma_m == 0 || gemm.mma_m == 16;
  if constexpr (TCGEMM_BUILT(IN, COMPUTE, true)) {
    if (square) return start<COMPUTE, In, In, Sum, 16, 16, 16>(gemm, stream);
  }
  if constexpr (TCGEMM_BUILT(IN, COMPUTE, false)) {
    if (gemm.mma_m == 32) return start<COMPUTE, In, In, Sum, 32, 8, 16>(gemm, stream);
    if (gemm.mma_m == 8) return start<COMPUTE, In, In, Sum, 8, 32, 16>(gemm, stream);
  }
  return cudaErrorNotSupported;
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = with_rows_of_c(asked);
  switch (gemm.in) {
    case DType::f16:
      return gemm.compute == Compute::f16
                 ? start_shape<DType::f16, Compute::f16, __half, __half>(gemm, stream)
                 : start_shape<DType::f16, Compute::f32, __half, float>(gemm, stream);
    case DType::bf16:
      return start_shape<DType::bf16, Compute::f32, __nv_bfloat16, float>(gemm, stream);
    case DType::s8:
      return start_shape<DType::s8, Compute::s32, signed char, int32_t>(gemm, stream);
    case DType::u8:
      return start_shape<DType::u8, Compute::s32, unsigned char, int32_t>(gemm, stream);
    default: break;
  }
  if constexpr (TCGEMM_BUILT(DType::f64, Compute::f64, true)) {
    if (gemm.in == DType::f64)
      return start<Compute::f64, double, double, double, 8, 8, 4>(gemm, stream);
  }
  if constexpr (TCGEMM_BUILT(DType::f32, Compute::tf32, true)) {
    if (gemm.compute == Compute::tf32)
      return start<Compute::tf32, float, Tf32, float, 16, 16, 8>(gemm, stream);
  }
  if constexpr (TCGEMM_BUILT(DType::f32, Compute::tf32x3, true)) {
    if (gemm.compute == Compute::tf32x3)
      return start<Compute::tf32x3, float, Tf32, float, 16, 16, 8>(gemm, stream);
  }
  return cudaErrorNotSupported;
}
