// C[M, N] = A[M, K] B[K, N] for a small C, of any strides: a warp multiplies what it loads itself.
//
// ADDS           one trip to memory. A product this small is all latency: the start of a kernel,
//                the way of the operands, the way of C. So the warps of a block divide K, and each
//                loads its part of A and B straight into the registers that mma.sync wants
//                (small_fragments.cuh), 8, 4 or 2 bytes at a time as rows are aligned; one barrier
//                lies between the first byte and C. No tensor map, no ring, no row it cannot read.
// STILL MISSING  reuse: the operands are read again for every 32 rows and columns of C, past shared
//                memory. A larger C wants wgmma_persistent.cu, or, unaligned, wmma_any.cu.
//
// grid   one block per BLOCK_M x BLOCK_N tile of C and matrix of the batch
// block  up to MOST_WARPS warps, which take steps of 16 along K in turn
// warp   all of the tile: 2 x 4 mma of 16 x 8 x 16
#include <algorithm>

#include "host/build_case.cuh"
#include "sm90/reduce.cuh"
#include "tile/order.cuh"
#include "small_fragments.cuh"

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

constexpr int BLOCK_M = 32;
constexpr int BLOCK_N = 32;
constexpr int BLOCK_K = 16;
constexpr int MOST_WARPS = 16;
constexpr int FEW_WARPS = 8;   // of which an SM has room for two blocks
constexpr int MOST_IN_FLIGHT = 2;  // steps that a warp loads at once; by elements one
constexpr int GROUPS = 8;      // of a lane's 32 accumulators, four neighbours each

template <bool FUSED, typename In, typename Out, Access A, Access B, int BYTES>
__global__ void __launch_bounds__(32 * MOST_WARPS)
    small_kernel(Side a, Side b, Rows c, int64_t c_batch, Epilogue<float> epilogue, int tiles_m,
                 int tiles_n) {
  using APatch = Patch<A, BYTES>;
  using BPatch = Patch<B, BYTES>;
  constexpr int IN_FLIGHT = A == Access::elements ? 1 : MOST_IN_FLIGHT;
  float4* const sums = reinterpret_cast<float4*>(dynamic_shared());
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
  const int n = blockIdx.x % tiles_n * BLOCK_N, m = blockIdx.x / tiles_n % tiles_m * BLOCK_M;
  const int batch = blockIdx.x / tiles_n / tiles_m;
  a.data += batch * a.batch_stride;
  b.data += batch * b.batch_stride;
  const int g = lane / 4, t = lane % 4;
  const int a_row = m + PATCH * g, b_row = n + PATCH * g;

  const int steps = (a.K - 1) / BLOCK_K + 1;
#pragma unroll
  for (int i = 0; i < IN_FLIGHT; ++i) {
    const int k = (warp + i * warps) * BLOCK_K + PATCH * t;
    APatch::prefetch(a, a_row, k);
    BPatch::prefetch(b, b_row, k);
  }
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();  // not before, or several kernels wait beside each other

  float d[2][PATCH][4] = {};
  for (int step = warp; step < steps; step += IN_FLIGHT * warps) {
    APatch a_patches[IN_FLIGHT];
    BPatch b_patches[IN_FLIGHT];
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; ++i) {
      const int k = (step + i * warps) * BLOCK_K + PATCH * t;
      a_patches[i].load(a, a_row, k);
      b_patches[i].load(b, b_row, k);
    }
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; ++i) multiply<In>(d, a_patches[i], b_patches[i]);
  }

#pragma unroll
  for (int q = 0; q < GROUPS; ++q) sums[(warp * GROUPS + q) * 32 + lane] = group_of_four(d, q);
  __syncthreads();
  c.data = static_cast<Out*>(c.data) + batch * c_batch;
  for (int q = warp; q < GROUPS; q += warps) {
    float x[4] = {};
    for (int w = 0; w < warps; ++w) {
      const float4 part = sums[(w * GROUPS + q) * 32 + lane];
      x[0] += part.x, x[1] += part.y, x[2] += part.z, x[3] += part.w;
    }
    const int row = m + PATCH * g + q / 2, col = n + 8 * t + 4 * (q % 2);
    const int inside = min(c.cols - col, 4);
    if (row >= c.rows || inside <= 0) continue;
    finish<FUSED, Out>(epilogue, x, row, col, batch, inside);
    store_four<Out>(c, x, row, col, inside);
  }
}

// `matrix` with its rows along M, or, of B, its columns along N.
Side side_of(const Matrix& matrix, bool rows_are_k) {
  const uint16_t* data = static_cast<const uint16_t*>(matrix.data);
  if (rows_are_k)
    return {data, matrix.col_stride, matrix.row_stride, matrix.batch_stride,
            static_cast<int>(matrix.cols), static_cast<int>(matrix.rows)};
  return {data, matrix.row_stride, matrix.col_stride, matrix.batch_stride,
          static_cast<int>(matrix.rows), static_cast<int>(matrix.cols)};
}

// How `side` is read in words of `bytes`, which lie at multiples of their size, each wholly inside
// or wholly outside.
Access access_of(const Side& side, int64_t batch, int bytes) {
  const auto fits = [bytes](int64_t elements) { return elements * 2 % bytes == 0; };
  if (reinterpret_cast<uint64_t>(side.data) % bytes != 0 || (batch > 1 && !fits(side.batch_stride)))
    return Access::elements;
  if (side.k_stride == 1 && fits(side.K) && (side.mn == 1 || fits(side.mn_stride)))
    return Access::K;
  if (side.mn_stride == 1 && fits(side.mn) && (side.K == 1 || fits(side.k_stride)))
    return Access::MN;
  return Access::elements;
}

// Calls body with how A and B are read, and the bytes of a word, as integral constants.
template <typename Body>
int with_accesses(const Side& a, const Side& b, int64_t batch, Body body) {
  constexpr std::integral_constant<Access, Access::K> k;
  constexpr std::integral_constant<Access, Access::MN> mn;
  constexpr std::integral_constant<Access, Access::elements> elements;
  const auto with = [&](auto bytes, auto otherwise) {
    const Access x = access_of(a, batch, bytes), y = access_of(b, batch, bytes);
    if (x == Access::elements || y == Access::elements) return otherwise();
    if (x == Access::K) return y == Access::K ? body(k, k, bytes) : body(k, mn, bytes);
    return y == Access::K ? body(mn, k, bytes) : body(mn, mn, bytes);
  };
  return with(std::integral_constant<int, 8>{}, [&] {
    return with(std::integral_constant<int, 4>{}, [&] {
      return body(elements, elements, std::integral_constant<int, 2>{});
    });
  });
}

// As many as need one trip, and where SMs have several blocks no more than fit.
int warps_of(int64_t steps, int in_flight, bool few_tiles) {
  const int64_t one_trip = std::max<int64_t>(FEW_WARPS, ceil_div(steps, in_flight));
  const int64_t most = few_tiles ? one_trip : FEW_WARPS;
  return static_cast<int>(std::min({steps, most, int64_t{MOST_WARPS}}));
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = with_rows_of_c(asked);
  const Side a = side_of(gemm.a, false), b = side_of(gemm.b, true);
  const int64_t tiles_m = ceil_div(a.mn, BLOCK_M), tiles_n = ceil_div(b.mn, BLOCK_N);
  const int64_t tiles = tiles_m * tiles_n * gemm.batch;
  if (tiles > INT32_MAX || std::max(gemm.c.rows, gemm.c.cols) > MOST_ELEMENTS ||
      gemm.a.cols > MOST_ELEMENTS)
    return cudaErrorInvalidConfiguration;
  int sms = 0;
  if (const int error = multiprocessors(&sms)) return error;
  Rows c = rows_of(gemm.c, gemm.out);
  c.vectors = c.vectors && (gemm.batch == 1 || gemm.c.batch_stride % 4 == 0);
  const auto with = [&](auto kernel, int in_flight) {
    const int warps = warps_of(ceil_div(a.K, BLOCK_K), in_flight, tiles <= sms);
    return launch_clusters(kernel, static_cast<unsigned>(tiles), 1, dim3(32 * warps),
                           warps * GROUPS * 32 * sizeof(float4), stream, a, b, c,
                           gemm.c.batch_stride, epilogue_of<float>(gemm),
                           static_cast<int>(tiles_m), static_cast<int>(tiles_n));
  };
  return with_types(gemm, [&](auto in, auto out) {
    using In = decltype(in);
    using Out = decltype(out);
    return with_accesses(a, b, gemm.batch, [&](auto x, auto y, auto bytes) {
      const int in_flight = bytes == 2 ? 1 : MOST_IN_FLIGHT;
      if constexpr (BUILT<In, true>)
        if (is_plain(gemm)) return with(small_kernel<false, In, Out, x, y, bytes>, in_flight);
      if constexpr (BUILT<In, false>)
        return with(small_kernel<true, In, Out, x, y, bytes>, in_flight);
      return static_cast<int>(cudaErrorNotSupported);
    });
  });
}
