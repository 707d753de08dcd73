// C[M, N] = A[M, K] B[K, N] for a small C, of any strides: a warp multiplies what it loads itself.
//
// ADDS           one trip to memory. A product this small is all latency: the start of a kernel,
//                the way of the operands, the way of C, and every instruction in between. Where
//                rows begin at multiples of 16 bytes, cp.async asks for all of K that fits
//                (small/ring.cuh). By words of 8 or 4 bytes the warps of a block divide K, and each
//                loads straight into the registers that mma.sync wants (small/words.cuh). By
//                elements the block loads rows as they lie (small/staged.cuh). A cluster divides a
//                long K (small/sums.cuh). No tensor map, no row it cannot read.
// STILL MISSING  reuse: the operands are read again for every 32 rows and columns of C, or 64. A
//                larger C wants wgmma_persistent.cu, or, unaligned, wmma_any.cu.
//
// grid   one block, or cluster, per tile of C, 32 x 32 or 64 x 64, and matrix of the batch
// block  ring: 2 x 2 warps; by words up to MOST_WARPS, which take steps of 16 along K in turn; by
//        elements 8
// warp   ring: 16 x 16 of the tile, or 32 x 32; by words all of it; by elements 16 x 8, or 16 x 32
#include <algorithm>

#include "host/build_case.cuh"
#include "sm90/reduce.cuh"
#include "tile/divisor.cuh"
#include "tile/order.cuh"
#include "small/ring.cuh"
#include "small/staged.cuh"
#include "small/words.cuh"

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

constexpr int BLOCK = 32;       // rows and columns of C
constexpr int WIDE_BLOCK = 64;  // where the plan says so
constexpr int MOST_WARPS = 16;
constexpr int FEW_WARPS = 8;    // of which an SM has room for two blocks

// Whether operands come in words that lanes load as mma.sync wants them.
template <int BYTES>
constexpr bool BY_WORDS = BYTES == 8 || BYTES == 4;

// Of a block; and blocks of which an SM has room: fewer where more is held in registers.
template <int BYTES>
constexpr int MOST_THREADS = BY_WORDS<BYTES> ? 32 * MOST_WARPS
                             : BYTES == 16   ? RING_THREADS
                                             : STAGED_THREADS;
template <bool DIVIDED, int BYTES, int TILE>
constexpr int LEAST_BLOCKS = BY_WORDS<BYTES> ? 1
                             : BYTES == 16   ? (DIVIDED || TILE == WIDE_BLOCK ? 6 : 8)
                                             : (TILE == WIDE_BLOCK ? 4 : 3);

// Whether a cluster may divide K: a larger tile in a ring has too much to exchange.
template <int BYTES, int TILE>
constexpr bool DIVIDES = !BY_WORDS<BYTES> && (BYTES == 2 || TILE == BLOCK);

// x / y. Of a small product it is most often 0. What a division takes beyond that did not show,
// while more parameters did (docs/lab/cuda_thin.md).
__device__ __forceinline__ unsigned quotient(unsigned x, unsigned y) { return x < y ? 0 : x / y; }

template <bool FUSED, bool DIVIDED, typename In, typename Out, Access A, Access B, int BYTES,
          int TILE>
__global__ void __launch_bounds__(MOST_THREADS<BYTES>, LEAST_BLOCKS<DIVIDED, BYTES, TILE>)
    small_kernel(Side a, Side b, Rows c, int64_t c_batch, Epilogue<float> epilogue,
                 unsigned tiles_m, unsigned tiles_n, Parts parts) {
  // From the last tile to the first: the kernel behind a product mostly reads C from its beginning.
  const unsigned tile = DIVIDED ? parts.by.quotient(blockIdx.x) : gridDim.x - 1 - blockIdx.x;
  const unsigned of_matrix = tiles_m * tiles_n;
  const unsigned batch = quotient(tile, of_matrix), place = tile - batch * of_matrix;
  const unsigned row = quotient(place, tiles_n);
  const int m = row * TILE, n = (place - row * tiles_n) * TILE;
  a.data += batch * a.batch_stride;
  b.data += batch * b.batch_stride;
  c.data = static_cast<Out*>(c.data) + batch * c_batch;
  if constexpr (BY_WORDS<BYTES>)
    multiply_words<FUSED, In, Out, A, B, BYTES>(a, b, c, epilogue, m, n, batch);
  else if constexpr (BYTES == 16)
    multiply_ring<FUSED, DIVIDED, In, Out, RingPanel<A, TILE>, RingPanel<B, TILE>>(
        a, b, c, epilogue, m, n, batch, parts);
  else
    multiply_staged<FUSED, DIVIDED, In, Out, Panel<A, TILE>, Panel<B, TILE>>(
        a, b, c, epilogue, m, n, batch, parts);
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

// How `side` is read in words of `bytes`, which lie at multiples of their size. Those of 4 and 8
// are wholly inside or wholly outside; an end may divide one of 16. Elements need no such rows:
// they are loaded along those that there are.
Access access_of(const Side& side, int64_t batch, int bytes) {
  if (bytes == 2)
    return side.mn_stride == 1 && (side.k_stride != 1 || side.K == 1) ? Access::MN : Access::K;
  const auto fits = [bytes](int64_t elements) { return elements * 2 % bytes == 0; };
  const auto ends = [&](int64_t elements) { return bytes == 16 || fits(elements); };
  if (reinterpret_cast<uint64_t>(side.data) % bytes != 0 || (batch > 1 && !fits(side.batch_stride)))
    return Access::elements;
  if (side.k_stride == 1 && ends(side.K) && (side.mn == 1 || fits(side.mn_stride)))
    return Access::K;
  if (side.mn_stride == 1 && ends(side.mn) && (side.K == 1 || fits(side.k_stride)))
    return Access::MN;
  return Access::elements;
}

// `side` as a kernel takes it. Beyond the last line nothing is read, but cp.async is given
// addresses all the same, and they have to be multiples of 16. The stride of a single line may be
// anything: with 0 in its place they are the line's own.
Side for_kernel(Side side) {
  if (side.mn == 1) side.mn_stride = 0;
  if (side.K == 1) side.k_stride = 0;
  return side;
}

// Calls body with how A and B are read, the bytes of a word and the rows and columns of a tile, as
// integral constants: the widest words that fit both, or, of a wide tile, 16 bytes or elements.
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
  constexpr std::integral_constant<int, 16> units;
  constexpr std::integral_constant<int, 2> elements;
  constexpr std::integral_constant<int, BLOCK> tile;
  constexpr std::integral_constant<int, WIDE_BLOCK> wide_tile;
  if (wide)
    with(units, wide_tile) || with(elements, wide_tile);
  else
    with(units, tile) || with(std::integral_constant<int, 8>{}, tile) ||
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

// A product, whatever its types and accesses.
struct Product {
  const Gemm& gemm;
  Side a, b;
  Rows c;
  int64_t tiles_m, tiles_n, tiles;
  cudaStream_t stream;
};

template <bool DIVIDED, typename In, typename Out, Access A, Access B, int BYTES, int TILE>
int start(const Product& of, const Parts& parts, int threads, int shared_bytes) {
  const auto with = [&](auto kernel) {
    return launch_clusters(kernel, static_cast<unsigned>(of.tiles), parts.count, dim3(threads),
                           shared_bytes, of.stream, of.a, of.b, of.c, of.gemm.c.batch_stride,
                           epilogue_of<float>(of.gemm), static_cast<unsigned>(of.tiles_m),
                           static_cast<unsigned>(of.tiles_n), parts);
  };
  if constexpr (BUILT<In, true>)
    if (is_plain(of.gemm)) return with(small_kernel<false, DIVIDED, In, Out, A, B, BYTES, TILE>);
  if constexpr (BUILT<In, false>)
    return with(small_kernel<true, DIVIDED, In, Out, A, B, BYTES, TILE>);
  return cudaErrorNotSupported;
}

template <typename In, typename Out, Access A, Access B, int BYTES, int TILE>
int start(const Product& of, int sms) {
  if constexpr (BY_WORDS<BYTES>) {
    const int64_t steps = ceil_div(of.a.K, STEP_K);
    const int warps = warps_of(of.gemm, steps, of.tiles <= sms);
    const int shared_bytes = std::min<int64_t>(warps, steps) * GROUPS * 32 * sizeof(float4);
    return start<false, In, Out, A, B, BYTES, TILE>(of, Parts::of(1), 32 * warps, shared_bytes);
  } else {
    constexpr bool RING = BYTES == 16;
    using PanelA = std::conditional_t<RING, RingPanel<A, TILE>, Panel<A, TILE>>;
    using PanelB = std::conditional_t<RING, RingPanel<B, TILE>, Panel<B, TILE>>;
    constexpr int THREADS = MOST_THREADS<BYTES>;
    const int64_t steps = ceil_div(of.a.K, PanelA::STAGE_DEPTH);
    const Parts parts = Parts::of(DIVIDES<BYTES, TILE> ? splits_of(of.gemm, steps) : 1);
    int shared_bytes = 0;
    if constexpr (RING) shared_bytes = ring_bytes<PanelA, PanelB>(steps, parts);
    else shared_bytes = staged_bytes<PanelA, PanelB>(parts);
    if constexpr (DIVIDES<BYTES, TILE>)
      if (parts.count > 1)
        return start<true, In, Out, A, B, BYTES, TILE>(of, parts, THREADS, shared_bytes);
    return start<false, In, Out, A, B, BYTES, TILE>(of, parts, THREADS, shared_bytes);
  }
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
  const Product product{gemm, for_kernel(a), for_kernel(b), c, tiles_m, tiles_n, tiles, stream};
  return with_types(gemm, [&](auto in, auto out) {
    return with_accesses(a, b, gemm.batch, wide, [&](auto x, auto y, auto bytes, auto tile) {
      return start<decltype(in), decltype(out), x, y, bytes, tile>(product, sms);
    });
  });
}
