// C[M, N] = A[M, K] B[K, N]: the definition, one thread per element.
//
// ADDS           a thread for each element of C, so 256 sums run in a block and thousands on the
//                GPU. Any size, any strides.
// STILL MISSING  reuse. Each thread reads its whole row of A and column of B: 2 K loads for 2 K
//                operations, 0.5 FLOP per byte if no cache helped. See tiled.cu.
//
// grid   one block per BLOCK_M x BLOCK_N tile of C, row after row
// block  16 x 16 threads; threadIdx.x runs along N, so that a warp's loads of a row-major B and
//        its stores to a row-major C are neighbours in memory
// thread one element of C, its sum in a register in float32
//
// Why it is not slower still: the 16 threads of a half warp share one element of A, and a warp's
// two rows share 32 bytes of B. A step of a warp asks for three sectors of 32 bytes, where 64
// separate loads would ask for 64, and the L1 cache answers most of them. What is left are two load
// instructions for each multiply-add of a thread, and their latency.
#include "convert.cuh"
#include "order.cuh"
#include "select.cuh"

namespace {

using namespace tcgemm;

constexpr int BLOCK_M = 16;
constexpr int BLOCK_N = 16;

template <typename In, typename Out>
__global__ void __launch_bounds__(BLOCK_M * BLOCK_N) naive_kernel(Gemm gemm, int tiles_n) {
  const Tile tile = row_major_tile(blockIdx.x, tiles_n);
  const int64_t m = static_cast<int64_t>(tile.m) * BLOCK_M + threadIdx.y;
  const int64_t n = static_cast<int64_t>(tile.n) * BLOCK_N + threadIdx.x;
  if (m >= gemm.c.rows || n >= gemm.c.cols) return;

  const In* a = static_cast<const In*>(gemm.a.data) + m * gemm.a.row_stride;
  const In* b = static_cast<const In*>(gemm.b.data) + n * gemm.b.col_stride;
  float sum = 0.0f;
  // Four steps at a time put eight loads in flight before the first sum needs one.
#pragma unroll 4
  for (int64_t k = gemm.a.cols; k > 0; --k) {
    sum += to_float(*a) * to_float(*b);
    a += gemm.a.col_stride;
    b += gemm.b.row_stride;
  }

  Out* c = static_cast<Out*>(gemm.c.data);
  c[m * gemm.c.row_stride + n * gemm.c.col_stride] = from_float<Out>(sum);
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = with_rows_of_c(asked);
  const int64_t tiles_m = ceil_div(gemm.c.rows, BLOCK_M);
  const int64_t tiles_n = ceil_div(gemm.c.cols, BLOCK_N);
  return with_types(gemm, [&](auto in, auto out) {
    return launch_tiles(naive_kernel<decltype(in), decltype(out)>, tiles_m, tiles_n,
                        dim3(BLOCK_N, BLOCK_M), 0, stream, gemm, static_cast<int>(tiles_n));
  });
}
