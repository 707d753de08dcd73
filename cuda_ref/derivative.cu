// dZ[M, N] = dY[M, N] * act'(Z[M, N]), and db[n] = the sum over m of dZ[m, n], in one pass.
//
// No rung: the backward pass of a layer's activation. tcgemm_launch is given dY as A, Z as B and
// dZ as C, of M rows and N columns each, and db as the bias, which is written. For relu, Z may be
// relu(Z), which is positive where Z is. dY, Z and db are of type `in`. Without an activation it is
// the column sums of dY alone, of a bias that none follows: C is db then, of one row.
//
// A sum of its own would read dZ once more, a quarter of all that is moved. Here the column sums
// are taken before dZ is rounded, in float32: of its rows by each block, then of the blocks by a
// second kernel. Who adds what is settled before they start, so a GPU gives the same bits always.
//
// The memory is the limit: at 6 bytes an element of 16 bits and 4.8 TB/s, an H200 has time for
// some 36 instructions an element, 4 of them by the special function unit. gelu takes 22 and 2.
//
// grid       tiles of `rows` x COLS, with so many rows that blocks fill all SMs once, or twice where
//            dZ is stored
// block      WARPS warps, that take rows in turn
// warp       COLS columns: 32 words of 16 bytes
// thread     a word of dY and of Z in each of AT_ONCE rows, asked for before any is used
//
// The sums alone read half as much at the same time with twice the rows, and their blocks are large:
// there are fewer of them to add up. 8192 x 768 of 16 bits are in flight at once.
//
// Blocks begin with the last rows, since what wrote dY has left these in the L2, and end with the
// first, with which what reads dZ begins. Rows that are not of whole words take the same way by
// single elements, a row at a time.
#include <algorithm>

#include "host/select.cuh"
#include "sm90/early.cuh"
#include "tile/add_sums.cuh"
#include "tile/derivatives.cuh"
#include "tile/order.cuh"
#include "tile/words.cuh"

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

template <Activation ACTIVATION>
struct Shape {
  static constexpr bool ALONE = ACTIVATION == Activation::none;
  static constexpr int WARPS = ALONE ? 16 : 4;
  static constexpr int BLOCKS = ALONE ? 2 : 5;  // to an SM, with 128 or 80 KB of loads in flight
  static constexpr int WAVES = ALONE ? 1 : 2;   // of blocks, that have LEAST_ROWS at least
};
constexpr int LEAST_ROWS = 16;

// The columns of a block.
template <typename In>
constexpr int COLS = 32 * WORD<In>;

template <Activation ACTIVATION, bool WORDS, typename In, typename Out>
__global__ void __launch_bounds__(32 * Shape<ACTIVATION>::WARPS, Shape<ACTIVATION>::BLOCKS)
    derivative(View<const In> above, View<const In> z, View<Out> below, float* sums, int64_t M,
               int64_t N, unsigned tiles_n, int64_t rows) {
  constexpr bool ALONE = Shape<ACTIVATION>::ALONE;
  constexpr int COUNT = WORD<In>, WARPS = Shape<ACTIVATION>::WARPS;
  constexpr int AT_ONCE = !WORDS ? 1 : ALONE ? 8 : 4, STEP = AT_ONCE * WARPS;
  __shared__ float of_warps[WARPS][COLS<In>];
#if TCGEMM_SM >= 90
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();  // not before, or several kernels wait beside each other
#endif
  // Of a row a thread has a word, or one element in every 32, from `mine` on.
  constexpr int NEXT = WORDS ? 1 : 32;
  const int warp = threadIdx.x / 32, mine = threadIdx.x % 32 * (WORDS ? COUNT : 1);
  const unsigned tile = gridDim.x - 1 - blockIdx.x;  // from the last row on
  const int64_t part = tile / tiles_n, n = int64_t{tile % tiles_n} * COLS<In>;
  const int columns = static_cast<int>(N - n < COLS<In> ? N - n : COLS<In>);
  const int64_t first = part * rows;
  const int last = static_cast<int>(M - first < rows ? M - first : rows);
  above.move_to(first + warp, n + mine);
  z.move_to(first + warp, n + mine);
  below.move_to(first + warp, n + mine);

  float sum[COUNT] = {};
#pragma unroll 1
  for (int row = warp; row < last; row += STEP) {
    // What does not exist is 0, and so is its share of the sum.
    std::conditional_t<WORDS, Word<In>, Elements<In>> dy[AT_ONCE], x[AT_ONCE];
    const auto exists = [&](int i, int e) {
      return row + i * WARPS < last && mine + NEXT * e < columns;
    };
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
#pragma unroll
      for (int e = 0; e < (WORDS ? 1 : COUNT); ++e) {
        if (!exists(i, e)) continue;
        const In *of_dy = above.at(i * WARPS, NEXT * e), *of_x = z.at(i * WARPS, NEXT * e);
        if constexpr (WORDS && ALONE)
          dy[i].load(of_dy);
        else if constexpr (WORDS)
          dy[i].load_streaming(of_dy), x[i].load_streaming(of_x);
        else if constexpr (ALONE)
          dy[i].elements[e] = *of_dy;
        else
          dy[i].elements[e] = *of_dy, x[i].elements[e] = *of_x;
      }
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      float dz[COUNT];
#pragma unroll
      for (int e = 0; e < COUNT; ++e) {
        if constexpr (ALONE)
          dz[e] = dy[i][e];
        else
          dz[e] = through<ACTIVATION>(dy[i][e], x[i][e]);
        sum[e] += dz[e];
      }
#pragma unroll
      for (int e = 0; e < (WORDS ? 1 : COUNT); ++e) {
        if (ALONE || !exists(i, e)) continue;
        Out* to = below.at(i * WARPS, NEXT * e);
        if constexpr (WORDS)
          store_neighbours(to, dz);
        else
          *to = from_float<Out>(dz[e]);
      }
    }
    above.move_to(STEP, 0), z.move_to(STEP, 0), below.move_to(STEP, 0);
  }
  if (sums == nullptr) return;
#pragma unroll
  for (int e = 0; e < COUNT; ++e) of_warps[warp][mine + NEXT * e] = sum[e];
  __syncthreads();
#pragma unroll 1
  for (int c = threadIdx.x; c < columns; c += 32 * WARPS) {
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) total += of_warps[w][c];
    sums[part * N + n + c] = total;
  }
}

template <typename T>
View<T> view(const Matrix& matrix) {
  return {static_cast<T*>(matrix.data), matrix.row_stride, matrix.col_stride};
}

// Whether all rows are whole words, of as many elements as a word of In has.
template <typename In, typename Out>
bool rows_are_words(const Gemm& gemm) {
  const auto aligned = [&](const Matrix& matrix, int64_t bytes, int64_t item) {
    return matrix.col_stride == 1 && reinterpret_cast<uintptr_t>(matrix.data) % bytes == 0 &&
           (matrix.rows == 1 || matrix.row_stride * item % bytes == 0);
  };
  if (gemm.c.cols % WORD<In> != 0 || !aligned(gemm.a, 16, sizeof(In))) return false;
  return gemm.activation == Activation::none ||
         (aligned(gemm.b, 16, sizeof(In)) &&
          aligned(gemm.c, WORD<In> * sizeof(Out), sizeof(Out)));
}

template <Activation ACTIVATION, typename In, typename Out>
int launch_derivative(const Gemm& gemm, View<In> total, cudaStream_t stream) {
  const int64_t M = gemm.a.rows, N = gemm.a.cols;
  if (N == 0) return cudaSuccess;
  int sms = 0, error = multiprocessors(&sms);
  if (error != cudaSuccess) return error;
  const int64_t tiles_n = ceil_div(N, COLS<In>);
  using Of = Shape<ACTIVATION>;
  const int64_t wanted = std::max<int64_t>(1, int64_t{sms} * Of::BLOCKS * Of::WAVES / tiles_n);
  const int64_t rows = std::max<int64_t>(LEAST_ROWS, ceil_div(M, wanted));
  const int64_t parts = std::max<int64_t>(1, ceil_div(M, rows));  // one writes the sums of no rows
  float* sums = nullptr;
  if (total.data != nullptr) {
    if (gemm.scratch.allocate == nullptr) return cudaErrorNotSupported;
    sums = static_cast<float*>(gemm.scratch.allocate(parts * N * sizeof(float), stream));
    if (sums == nullptr) return cudaErrorMemoryAllocation;
  }
  const auto run = [&](auto kernel) {
    return start_blocks(kernel, parts * tiles_n, Of::WARPS, 0, stream, view<const In>(gemm.a),
                 view<const In>(gemm.b), view<Out>(gemm.c), sums, M, N,
                 static_cast<unsigned>(tiles_n), rows);
  };
  error = rows_are_words<In, Out>(gemm) ? run(derivative<ACTIVATION, true, In, Out>)
                                        : run(derivative<ACTIVATION, false, In, Out>);
  if (error != cudaSuccess || sums == nullptr) return error;
  return start_blocks(add_sums<In>, ceil_div(N, 32), ADD_WARPS, 0, stream, sums, total, N, parts);
}

template <typename In, typename Out>
int launch_activation(const Gemm& gemm, cudaStream_t stream) {
  const View<In> total{static_cast<In*>(const_cast<void*>(gemm.bias.data)), 0,
                       gemm.bias.col_stride};
  int error = cudaErrorNotSupported;
  const auto of = [&](auto constant, View<In> sums) {
    constexpr Activation ACTIVATION = decltype(constant)::value;
    if (gemm.activation == ACTIVATION)
      error = launch_derivative<ACTIVATION, In, Out>(gemm, sums, stream);
  };
  of(Constant<Activation::relu>{}, total), of(Constant<Activation::gelu>{}, total);
  of(Constant<Activation::gelu_tanh>{}, total), of(Constant<Activation::silu>{}, total);
  if constexpr (std::is_same_v<In, Out>) of(Constant<Activation::none>{}, view<In>(gemm.c));
  return error;
}

// One build is for one pair of types, where it is told which.
template <DType IN, DType OUT, typename In, typename Out>
bool launched(const Gemm& gemm, cudaStream_t stream, int* error) {
#ifdef TCGEMM_IN
  constexpr bool BUILT = int(IN) == TCGEMM_IN && int(OUT) == TCGEMM_OUT;
#else
  constexpr bool BUILT = true;
#endif
  if (gemm.in != IN || gemm.out != OUT) return false;
  if constexpr (BUILT) *error = launch_activation<In, Out>(gemm, stream);
  return BUILT;
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {
  constexpr DType f16 = DType::f16, bf16 = DType::bf16, f32 = DType::f32;
  int error = cudaErrorNotSupported;
  launched<f16, f16, __half, __half>(gemm, stream, &error) ||
      launched<bf16, bf16, __nv_bfloat16, __nv_bfloat16>(gemm, stream, &error) ||
      launched<f32, f32, float, float>(gemm, stream, &error) ||
      launched<f32, f16, float, __half>(gemm, stream, &error) ||
      launched<f32, bf16, float, __nv_bfloat16>(gemm, stream, &error);
  return error;
}
