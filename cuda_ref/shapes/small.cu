// C[M, N] = A[M, K] B[K, N] for a small C, of any strides: a warp multiplies what it loads itself.
//
// ADDS           one trip to memory. A product this small is all latency: the start of a kernel,
//                the way of the operands, the way of C, and every instruction in between. By words
//                of 8 or 4 bytes the warps of a block divide K, and each loads its part of A and B
//                straight into the registers that mma.sync wants (small_fragments.cuh). By vectors
//                of 16 bytes, or by elements, the block loads rows as they lie, and a cluster
//                divides K (small_staged.cuh). No tensor map, no ring, no row it cannot read.
// STILL MISSING  reuse: the operands are read again for every 32 rows and columns of C, or 64. A
//                larger C wants wgmma_persistent.cu, or, unaligned, wmma_any.cu.
//
// grid   one block, or cluster, per tile of C, 32 x 32 or staged 64 x 64, and matrix of the batch
// block  by words up to MOST_WARPS warps, which take steps of 16 along K in turn; staged 8 warps
// warp   by words all of the tile: 2 x 4 mma of 16 x 8 x 16; staged 16 x 8 of it, or 16 x 32
#include <algorithm>

#include "host/build_case.cuh"
#include "sm90/reduce.cuh"
#include "tile/order.cuh"
#include "small_fragments.cuh"
#include "small_staged.cuh"

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

constexpr int BLOCK = 32;       // rows and columns of C
constexpr int WIDE_BLOCK = 64;  // by elements, where the plan says so
constexpr int BLOCK_K = 16;
constexpr int MOST_WARPS = 16;
constexpr int FEW_WARPS = 8;   // of which an SM has room for two blocks
constexpr int IN_FLIGHT = 2;   // steps that a warp loads at once
constexpr int GROUPS = 8;      // of a lane's 32 accumulators, four neighbours each

// Staged blocks of which an SM has room: with two stages in registers one less.
template <int TILE>
constexpr int STAGED_BLOCKS = TILE == BLOCK ? 3 : 4;

// Whether operands come in words that lanes load as mma.sync wants them.
template <int BYTES>
constexpr bool BY_WORDS = BYTES == 8 || BYTES == 4;

// C's tile at (m, n) of matrix `batch`, from words of BYTES.
template <bool FUSED, typename In, typename Out, Access A, Access B, int BYTES>
__device__ __forceinline__ void multiply_words(const Side& a, const Side& b, const Rows& c,
                                               const Epilogue<float>& epilogue, int m, int n,
                                               int batch) {
  using APatch = Patch<A, BYTES>;
  using BPatch = Patch<B, BYTES>;
  float4* const sums = reinterpret_cast<float4*>(dynamic_shared());
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
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

  // Where there are more warps than steps the others help to store C.
  const int parts = min(warps, steps);
  if (warp < parts) {
#pragma unroll
    for (int q = 0; q < GROUPS; ++q) sums[(warp * GROUPS + q) * 32 + lane] = group_of_four(d, q);
  }
  __syncthreads();
  for (int q = warp; q < GROUPS; q += warps) {
    float x[4] = {};
    for (int w = 0; w < parts; ++w) {
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

// x / y. Of a small product it is most often 0, and a division takes 100 clocks.
__device__ __forceinline__ unsigned quotient(unsigned x, unsigned y) { return x < y ? 0 : x / y; }

template <bool FUSED, typename In, typename Out, Access A, Access B, int BYTES, int TILE>
__global__ void __launch_bounds__(BY_WORDS<BYTES> ? 32 * MOST_WARPS : STAGED_THREADS,
                                  BY_WORDS<BYTES> ? 1 : STAGED_BLOCKS<TILE>)
    small_kernel(Side a, Side b, Rows c, int64_t c_batch, Epilogue<float> epilogue,
                 unsigned tiles_m, unsigned tiles_n, int splits) {
  const unsigned tile = BY_WORDS<BYTES> || splits == 1 ? blockIdx.x : blockIdx.x / splits;
  const unsigned of_matrix = tiles_m * tiles_n;
  const unsigned batch = quotient(tile, of_matrix), place = tile - batch * of_matrix;
  const unsigned row = quotient(place, tiles_n);
  const int m = row * TILE, n = (place - row * tiles_n) * TILE;
  a.data += batch * a.batch_stride;
  b.data += batch * b.batch_stride;
  c.data = static_cast<Out*>(c.data) + batch * c_batch;
  if constexpr (BY_WORDS<BYTES>)
    multiply_words<FUSED, In, Out, A, B, BYTES>(a, b, c, epilogue, m, n, batch);
  else
    multiply_staged<FUSED, In, Out, Panel<A, BYTES, TILE>, Panel<B, BYTES, TILE>>(
        a, b, c, epilogue, m, n, batch, splits);
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
// or wholly outside. Elements need no such rows: they are loaded along those that there are.
Access access_of(const Side& side, int64_t batch, int bytes) {
  if (bytes == 2)
    return side.mn_stride == 1 && (side.k_stride != 1 || side.K == 1) ? Access::MN : Access::K;
  const auto fits = [bytes](int64_t elements) { return elements * 2 % bytes == 0; };
  if (reinterpret_cast<uint64_t>(side.data) % bytes != 0 || (batch > 1 && !fits(side.batch_stride)))
    return Access::elements;
  if (side.k_stride == 1 && fits(side.K) && (side.mn == 1 || fits(side.mn_stride)))
    return Access::K;
  if (side.mn_stride == 1 && fits(side.mn) && (side.K == 1 || fits(side.k_stride)))
    return Access::MN;
  return Access::elements;
}

// Calls body with how A and B are read, the bytes of a word and the rows and columns of a tile, as
// integral constants: the widest words that fit both, or, of a wide tile, elements.
template <typename Body>
int with_accesses(const Side& a, const Side& b, int64_t batch, bool wide, Body body) {
  constexpr std::integral_constant<Access, Access::K> k;
  constexpr std::integral_constant<Access, Access::MN> mn;
  int result = cudaErrorNotSupported;
  const auto with = [&](auto bytes, auto tile) {
    const Access x = access_of(a, batch, bytes), y = access_of(b, batch, bytes);
    if (x == Access::elements || y == Access::elements) return false;
    if (x == Access::K)
      result = y == Access::K ? body(k, k, bytes, tile) : body(k, mn, bytes, tile);
    else
      result = y == Access::K ? body(mn, k, bytes, tile) : body(mn, mn, bytes, tile);
    return true;
  };
  constexpr std::integral_constant<int, 2> elements;
  constexpr std::integral_constant<int, BLOCK> tile;
  if (wide)
    with(elements, std::integral_constant<int, WIDE_BLOCK>{});
  else
    with(std::integral_constant<int, 16>{}, tile) || with(std::integral_constant<int, 8>{}, tile) ||
        with(std::integral_constant<int, 4>{}, tile) || with(elements, tile);
  return result;
}

// Of words: those of the plan. Without one as many as need one trip, and where SMs have several
// blocks no more than fit. Of few tiles more than have work, which store C: one would store it in
// eight turns.
int warps_of(const Gemm& gemm, int64_t steps, bool few_tiles) {
  if (const int planned = plan_of(gemm).warps; planned > 0) return std::min(planned, MOST_WARPS);
  if (!few_tiles) return static_cast<int>(std::min<int64_t>(steps, FEW_WARPS));
  const int64_t one_trip = std::max<int64_t>(FEW_WARPS, ceil_div(steps, IN_FLIGHT));
  return static_cast<int>(std::min<int64_t>(one_trip, MOST_WARPS));
}

// Parts of K, staged: those of the plan, of which none is empty. Without a plan K is whole.
int splits_of(const Gemm& gemm, int64_t steps) {
  const int64_t most = std::min({steps, int64_t{MOST_PARTS}, int64_t{MAX_CLUSTER}});
  return static_cast<int>(std::clamp<int64_t>(plan_of(gemm).splits, 1, most));
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = with_rows_of_c(asked);
  const Side a = side_of(gemm.a, false), b = side_of(gemm.b, true);
  const bool wide = plan_of(gemm).block_m == WIDE_BLOCK;
  const int block = wide ? WIDE_BLOCK : BLOCK;
  const int64_t tiles_m = ceil_div(a.mn, block), tiles_n = ceil_div(b.mn, block);
  const int64_t tiles = tiles_m * tiles_n * gemm.batch;
  if (tiles > INT32_MAX / MOST_PARTS || std::max(gemm.c.rows, gemm.c.cols) > MOST_ELEMENTS ||
      gemm.a.cols > MOST_ELEMENTS)
    return cudaErrorInvalidConfiguration;
  int sms = 0;
  if (const int error = multiprocessors(&sms)) return error;
  Rows c = rows_of(gemm.c, gemm.out);
  c.vectors = c.vectors && (gemm.batch == 1 || gemm.c.batch_stride % 4 == 0);
  return with_types(gemm, [&](auto in, auto out) {
    using In = decltype(in);
    using Out = decltype(out);
    return with_accesses(a, b, gemm.batch, wide, [&](auto x, auto y, auto bytes, auto tile) {
      const auto start = [&](auto kernel) {
        int splits = 1, threads = STAGED_THREADS, shared_bytes = 0;
        if constexpr (BY_WORDS<bytes>) {
          const int64_t steps = ceil_div(a.K, BLOCK_K);
          const int warps = warps_of(gemm, steps, tiles <= sms);
          threads = 32 * warps;
          shared_bytes = std::min<int64_t>(warps, steps) * GROUPS * 32 * sizeof(float4);
        } else {
          splits = splits_of(gemm, ceil_div(a.K, DEPTH<bytes, tile>));
          shared_bytes = staged_bytes<Panel<x, bytes, tile>, Panel<y, bytes, tile>>(splits);
        }
        return launch_clusters(kernel, static_cast<unsigned>(tiles), splits, dim3(threads),
                               shared_bytes, stream, a, b, c, gemm.c.batch_stride,
                               epilogue_of<float>(gemm), static_cast<unsigned>(tiles_m),
                               static_cast<unsigned>(tiles_n), splits);
      };
      if constexpr (BUILT<In, true>)
        if (is_plain(gemm)) return start(small_kernel<false, In, Out, x, y, bytes, tile>);
      if constexpr (BUILT<In, false>) return start(small_kernel<true, In, Out, x, y, bytes, tile>);
      return static_cast<int>(cudaErrorNotSupported);
    });
  });
}
