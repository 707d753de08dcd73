// C[M, N] = A[M, K] @ B[K, N]: a kernel of your own. It is right for any size and strides.
//
// The lines below say what it takes; tcgemm reads them.
// tcgemm: float16 -> float16, bfloat16 -> bfloat16
// tcgemm: multiples of 1
//
//   tcgemm simulate NAME.cu --check       run it on this CPU: races, bounds, counts
//   tcgemm verify --kernel NAME.cu        both checks over edges and drawn calls
//   tcgemm bench --kernel NAME.cu         verified, then timed beside cuBLAS (on a GPU)
//   tcgemm show-kernel NAME.cu            what nvcc makes of it
#include "host/select.cuh"
#include "tile/convert.cuh"

using namespace tcgemm;

constexpr int BLOCK = 16;

template <typename In, typename Out>
__global__ void NAME_kernel(Matrix a_matrix, Matrix b_matrix, Matrix c_matrix) {
  __shared__ float a[BLOCK][BLOCK];
  __shared__ float b[BLOCK][BLOCK];
  const int x = threadIdx.x, y = threadIdx.y;
  const int64_t row = static_cast<int64_t>(blockIdx.y) * BLOCK + y;
  const int64_t col = static_cast<int64_t>(blockIdx.x) * BLOCK + x;
  const int64_t M = c_matrix.rows, N = c_matrix.cols, K = a_matrix.cols;
  const In* a_data = static_cast<const In*>(a_matrix.data);
  const In* b_data = static_cast<const In*>(b_matrix.data);
  float sum = 0.0f;
  for (int64_t k = 0; k < K; k += BLOCK) {
    // Zeros outside of A and B, so that the tails need no case of their own.
    a[y][x] = row < M && k + x < K
                  ? to_float(a_data[row * a_matrix.row_stride + (k + x) * a_matrix.col_stride])
                  : 0.0f;
    b[y][x] = k + y < K && col < N
                  ? to_float(b_data[(k + y) * b_matrix.row_stride + col * b_matrix.col_stride])
                  : 0.0f;
    __syncthreads();  // the tiles are written before anybody reads them
    for (int i = 0; i < BLOCK; ++i) sum += a[y][i] * b[i][x];
    __syncthreads();  // and read by everybody before they are written again
  }
  if (row < M && col < N) {
    Out* c = static_cast<Out*>(c_matrix.data);
    c[row * c_matrix.row_stride + col * c_matrix.col_stride] = from_float<Out>(sum);
  }
}

int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {
  const dim3 grid((gemm.c.cols + BLOCK - 1) / BLOCK, (gemm.c.rows + BLOCK - 1) / BLOCK);
  return with_types(gemm, [&](auto in, auto out) {
    return launch(NAME_kernel<decltype(in), decltype(out)>, grid, dim3(BLOCK, BLOCK), 0, stream,
                  gemm.a, gemm.b, gemm.c);
  });
}
