// Exercise 10: a ring whose parity does not flip.
//
// A producer warp fills a ring of two stages, eight consumer warps multiply them. full[stage] says that
// a tile is there, empty[stage] that it has been read. C is right for K up to 32 and wrong beyond: after
// one walk around the ring the same barrier has to be waited for with the other parity.
#include "host/gemm.cuh"
#include "ptx/sm90.cuh"

constexpr int BLOCK = 16;

__device__ inline const __half* at(const tcgemm::Matrix& matrix, int64_t row, int64_t col) {
  return static_cast<const __half*>(matrix.data) + row * matrix.row_stride + col * matrix.col_stride;
}

__device__ inline void store(const tcgemm::Matrix& c, int64_t row, int64_t col, float value) {
  static_cast<__half*>(c.data)[row * c.row_stride + col * c.col_stride] = __float2half(value);
}

constexpr int STAGES = 2, THREADS = BLOCK * BLOCK;

// Warp 8 copies tiles into a ring of stages, warps 0 to 7 multiply them.
__global__ void ring_parity(tcgemm::Gemm gemm) {
  using namespace tcgemm::sm90;
  __shared__ __half a[STAGES][BLOCK][BLOCK];
  __shared__ __half b[STAGES][BLOCK][BLOCK];
  __shared__ uint64_t barriers[2 * STAGES];
  const uint32_t full = shared_address(barriers), empty = full + 8 * STAGES;
  const int64_t row = blockIdx.y * BLOCK, col = blockIdx.x * BLOCK, K = gemm.a.cols;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      mbarrier_init(full + 8 * stage, 32);
      mbarrier_init(empty + 8 * stage, THREADS);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  uint32_t stage = 0, phase = 0;
  float sum = 0.0f;
  const int x = threadIdx.x % BLOCK, y = threadIdx.x / BLOCK;
  for (int64_t k = 0; k < K; k += BLOCK) {
    if (threadIdx.x >= THREADS) {
      mbarrier_try_wait_parity(empty + 8 * stage, phase ^ 1);
      for (int i = threadIdx.x - THREADS; i < BLOCK * BLOCK; i += 32) {
        a[stage][i / BLOCK][i % BLOCK] = *at(gemm.a, row + i / BLOCK, k + i % BLOCK);
        b[stage][i / BLOCK][i % BLOCK] = *at(gemm.b, k + i / BLOCK, col + i % BLOCK);
      }
      mbarrier_arrive(full + 8 * stage);
    } else {
      mbarrier_try_wait_parity(full + 8 * stage, phase);
      for (int i = 0; i < BLOCK; ++i)
        sum += __half2float(a[stage][y][i]) * __half2float(b[stage][i][x]);
      mbarrier_arrive(empty + 8 * stage);
    }
    if (++stage == STAGES) stage = 0;
  }
  if (threadIdx.x < THREADS) store(gemm.c, row + y, col + x, sum);
}

int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {
  const dim3 grid(gemm.c.cols / BLOCK, gemm.c.rows / BLOCK);
  return tcgemm::launch(ring_parity, grid, dim3(THREADS + 32), 0, stream, gemm);
}
