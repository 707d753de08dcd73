// C[M, N] = A[M, K] B[K, N] with Hopper's own instructions: wgmma and the bulk tensor copy.
//
// ADDS           TMA and wgmma. One thread starts the copy of a whole tile: addresses, bounds,
//                zeros past the edges and the swizzle are the hardware's. An mbarrier counts the
//                bytes in. Four warps together issue one multiply that reads both operands from
//                shared memory: no thread ever holds an operand, and an operand stored transposed
//                costs nothing.
// STILL MISSING  copies and multiplies take turns, one stage in each block: only the other blocks
//                of the SM fill the gaps (wgmma_specialized.cu).
//
// grid       one block per BLOCK_M x BLOCK_N tile of C, in groups of GROUP_M tile rows; three
//            blocks of 33 KB to an SM
// block      one warpgroup steps through K by BLOCK_K
// warpgroup  2 x wgmma 64 x 128 x 16 for each 16 of K; 128 accumulators a thread
#include "tile/order.cuh"
#include "sm90/tile.cuh"

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

constexpr int BLOCK_M = 128;
constexpr int BLOCK_N = 128;
constexpr int BLOCK_K = 64;
constexpr int GROUP_M = 8;
constexpr int THREADS = 128;
constexpr int BLOCKS_PER_SM = 3;
constexpr uint32_t A_BYTES = BLOCK_M * BLOCK_K * 2, B_BYTES = BLOCK_N * BLOCK_K * 2;
// Panels start at multiples of 1024 bytes; dynamic shared memory promises only 16.
constexpr uint32_t SHARED_BYTES = A_BYTES + B_BYTES + 1024;

template <typename In, typename Out, Major A, Major B>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
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

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = with_rows_of_c(asked);
  CUtensorMap a_map, b_map;
  Major a_major, b_major;
  int error = operand_map(gemm.a, false, gemm.in, BLOCK_M, &a_map, &a_major);
  if (error == cudaSuccess)
    error = operand_map(gemm.b, true, gemm.in, BLOCK_N, &b_map, &b_major);
  if (error != cudaSuccess) return error;

  const int M = static_cast<int>(gemm.c.rows), N = static_cast<int>(gemm.c.cols);
  const int K = static_cast<int>(gemm.a.cols);
  return with_types_and_majors(gemm, a_major, b_major, [&](auto in, auto out, auto a, auto b) {
    return launch_tiles(wgmma_tma<decltype(in), decltype(out), a, b>, ceil_div(M, BLOCK_M),
                        ceil_div(N, BLOCK_N), dim3(THREADS), SHARED_BYTES, stream, a_map, b_map,
                        plain_output(gemm.c, gemm.out), M, N, K);
  });
}
