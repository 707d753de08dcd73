// C[M, N] = A[M, K] @ B[K, N] with Hopper's own instructions: wgmma and the bulk tensor copy.
//
// Adds over the mma.sync rungs: one thread starts a copy of a whole tile (TMA: addresses, bounds
// and swizzle in hardware), bytes are counted in by an mbarrier, and four warps together issue one
// multiply that reads both operands from shared memory. No thread ever holds an operand.
// Still missing: copies and multiplies take turns; only the other blocks on the SM fill the gaps
// (wgmma_specialized).
//
// Tiles: block 128 x 128 x 64 by one warpgroup -> 2 x wgmma 64 x 128 x 16. One stage of 32 KB;
// three blocks per SM.
#include "tile_order.cuh"
#include "wgmma_tile.cuh"

namespace tcgemm {
namespace {

using namespace sm90;

constexpr int BLOCK_M = 128, BLOCK_N = 128, BLOCK_K = 64, GROUP_M = 8, THREADS = 128;
constexpr uint32_t A_BYTES = BLOCK_M * BLOCK_K * 2, B_BYTES = BLOCK_N * BLOCK_K * 2;
// Panels start at multiples of 1024 bytes; dynamic shared memory promises only 16.
constexpr uint32_t SHARED_BYTES = A_BYTES + B_BYTES + 1024;

template <typename In, typename Out, Major A, Major B>
__global__ void __launch_bounds__(THREADS, 3)
    wgmma_tma(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
              PlainOutput c, int M, int N, int K) {
  extern __shared__ uint8_t shared[];
  __shared__ uint64_t barrier_storage;
  const uint32_t barrier = shared_address(&barrier_storage);
  const uint32_t a_tile = (shared_address(shared) + 1023) / 1024 * 1024;
  const uint32_t b_tile = a_tile + A_BYTES;

  const int tiles_m = (M - 1) / BLOCK_M + 1, tiles_n = (N - 1) / BLOCK_N + 1;
  const Tile tile = grouped_tile<GROUP_M>(blockIdx.x, tiles_m, tiles_n);
  const int m = tile.m * BLOCK_M, n = tile.n * BLOCK_N;

  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
  }
  __syncthreads();

  float d[2][BLOCK_N / 2];
  const int k_tiles = (K - 1) / BLOCK_K + 1;
  for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
    if (threadIdx.x == 0) {
      mbarrier_arrive_expect_tx(barrier, A_BYTES + B_BYTES);
      load_tile<A, BLOCK_M>(a_tile, &a_map, barrier, m, k_tile * BLOCK_K);
      load_tile<B, BLOCK_N>(b_tile, &b_map, barrier, n, k_tile * BLOCK_K);
    }
    mbarrier_try_wait_parity(barrier, k_tile & 1);

    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BLOCK_K / MMA_K; ++k) {
      const uint64_t b = wgmma_descriptor(b_tile) + k * DESCRIPTOR_PER_MMA_K<B>;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint64_t a =
            wgmma_descriptor(a_tile + i * BYTES_PER_64_MN) + k * DESCRIPTOR_PER_MMA_K<A>;
        wgmma_m64n128k16<In, A, B>(d[i], a, b, k_tile > 0 || k > 0);
      }
    }
    wgmma_commit_group();
    wgmma_wait_group<0>();
    __syncthreads();  // all four warps have read the tiles: they may be overwritten
  }

#pragma unroll
  for (int i = 0; i < 2; ++i) store_accumulators<Out>(c, d[i], m + 64 * i, n, M, N);
}

}  // namespace
}  // namespace tcgemm

int tcgemm_launch(const tcgemm::Gemm& given, cudaStream_t stream) {
  using namespace tcgemm;
  using namespace tcgemm::sm90;
  const Gemm gemm = row_major_c(given);
  CUtensorMap a_map, b_map;
  Major a_major, b_major;
  int error = operand_map(gemm.a, false, gemm.in, BLOCK_M, &a_map, &a_major);
  if (error == cudaSuccess)
    error = operand_map(gemm.b, true, gemm.in, BLOCK_N, &b_map, &b_major);
  if (error != cudaSuccess) return error;

  const int M = static_cast<int>(gemm.c.rows), N = static_cast<int>(gemm.c.cols);
  const int K = static_cast<int>(gemm.a.cols);
  const unsigned blocks = ((M - 1) / BLOCK_M + 1) * ((N - 1) / BLOCK_N + 1);
  return select_variant(gemm, a_major, b_major, [&](auto in, auto out, auto a, auto b) {
    using In = typename decltype(in)::type;
    using Out = typename decltype(out)::type;
    return launch(wgmma_tma<In, Out, decltype(a)::value, decltype(b)::value>, blocks, THREADS,
                  SHARED_BYTES, stream, a_map, b_map, plain_output(gemm.c, gemm.out), M, N, K);
  });
}
