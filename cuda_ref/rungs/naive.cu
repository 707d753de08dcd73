// C[M, N] = A[M, K] B[K, N]: the definition, one thread per element; and the whole of Gemm.
//
// ADDS           a thread for each element of C, so 256 sums run in a block and thousands on the
//                GPU. Any size, any strides, any types, batches, and all that can be fused: what no
//                other rung takes, this one does.
// STILL MISSING  reuse. Each thread reads its whole row of A and column of B: 2 K loads for 2 K
//                operations, 0.5 FLOP per byte if no cache helped. See tiled.cu.
//
// grid   one block per BLOCK_M x BLOCK_N tile of C, row after row, matrix after matrix
// block  16 x 16 threads; threadIdx.x runs along N, so that a warp's loads of a row-major B and
//        its stores to a row-major C are neighbours in memory
// thread one element of C, its sum in a register: in float32, for float64 in float64, for integers
//        in int32 modulo 2^32
//
// Why it is not slower still: the 16 threads of a half warp share one element of A, and a warp's
// two rows share 32 bytes of B. A step of a warp asks for three sectors of 32 bytes, where 64
// separate loads would ask for 64, and the L1 cache answers most of them. What is left are its
// three cache lines for each multiply-add of a warp, of which it looks up one a clock.
#include "tile/epilogue.cuh"
#include "tile/order.cuh"
#include "host/select.cuh"

namespace {

using namespace tcgemm;

constexpr int BLOCK_M = 16;
constexpr int BLOCK_N = 16;

// sum + a * b, in the type of the sum. Two fp16 or bf16 numbers have an exact product in float32,
// and so have two fp8 numbers; tf32 operands are rounded first.
template <Compute COMPUTE, typename Acc, typename In>
__device__ inline Acc step(Acc sum, In a, In b) {
  if constexpr (std::is_integral_v<In>) {
    return multiply_add<Acc>(a, b, sum);
  } else if constexpr (std::is_same_v<In, double>) {
    return sum + a * b;
  } else if constexpr (COMPUTE == Compute::f16) {
    return __half2float(__float2half_rn(sum + to_float(a) * to_float(b)));
  } else if constexpr (COMPUTE == Compute::tf32) {
    return sum + to_tf32(a) * to_tf32(b);
  } else {
    return sum + to_float(a) * to_float(b);
  }
}

template <bool FUSED, Compute COMPUTE, typename Acc, typename In, typename Out>
__global__ void __launch_bounds__(BLOCK_M * BLOCK_N)
    naive_kernel(Matrix a_matrix, Matrix b_matrix, Matrix c_matrix, Epilogue<Acc> epilogue,
                 int tiles_m, int tiles_n) {
  const Tile tile = row_major_tile(blockIdx.x, tiles_n);
  const int64_t batch = tile.m / tiles_m;
  const int64_t m = static_cast<int64_t>(tile.m % tiles_m) * BLOCK_M + threadIdx.y;
  const int64_t n = static_cast<int64_t>(tile.n) * BLOCK_N + threadIdx.x;
  if (m >= c_matrix.rows || n >= c_matrix.cols) return;

  const In* a = static_cast<const In*>(a_matrix.data) + batch * a_matrix.batch_stride +
                m * a_matrix.row_stride;
  const In* b = static_cast<const In*>(b_matrix.data) + batch * b_matrix.batch_stride +
                n * b_matrix.col_stride;
  Acc sum = 0;
  // Four steps at a time put eight loads in flight before the first sum needs one.
#pragma unroll 4
  for (int64_t k = a_matrix.cols; k > 0; --k) {
    sum = step<COMPUTE>(sum, *a, *b);
    a += a_matrix.col_stride;
    b += b_matrix.row_stride;
  }

  Out* c = static_cast<Out*>(c_matrix.data) + batch * c_matrix.batch_stride;
  c[m * c_matrix.row_stride + n * c_matrix.col_stride] =
      finished<FUSED, Out>(epilogue, sum, m, n, batch);
}

template <Compute COMPUTE, typename Acc, typename In, typename Out>
int start(const Gemm& gemm, cudaStream_t stream) {
  const int64_t tiles_m = ceil_div(gemm.c.rows, BLOCK_M);
  const int64_t tiles_n = ceil_div(gemm.c.cols, BLOCK_N);
  const auto with = [&](auto kernel) {
    return launch_tiles(kernel, gemm.batch * tiles_m, tiles_n, dim3(BLOCK_N, BLOCK_M), 0, stream,
                        gemm.a, gemm.b, gemm.c, epilogue_of<Acc>(gemm), static_cast<int>(tiles_m),
                        static_cast<int>(tiles_n));
  };
  return is_plain(gemm) ? with(naive_kernel<false, COMPUTE, Acc, In, Out>)
                        : with(naive_kernel<true, COMPUTE, Acc, In, Out>);
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = with_rows_of_c(asked);
  switch (gemm.in) {
    case DType::f64: return start<Compute::f64, double, double, double>(gemm, stream);
    case DType::s8: return start<Compute::s32, int32_t, int8_t, int32_t>(gemm, stream);
    case DType::u8: return start<Compute::s32, int32_t, uint8_t, int32_t>(gemm, stream);
    case DType::f32:
      return gemm.compute == Compute::tf32
                 ? start<Compute::tf32, float, float, float>(gemm, stream)
                 : start<Compute::ieee, float, float, float>(gemm, stream);
    default:
      return with_small_floats(gemm, [&](auto in, auto out) {
        using In = decltype(in);
        using Out = decltype(out);
        if constexpr (std::is_same_v<In, __half>) {
          if (gemm.compute == Compute::f16)
            return start<Compute::f16, float, In, Out>(gemm, stream);
        }
        return start<Compute::f32, float, In, Out>(gemm, stream);
      });
  }
}
