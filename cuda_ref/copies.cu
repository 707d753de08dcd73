// copy[r, k] = x[r, k], of 16-bit elements: rows that begin anywhere, into aligned ones.
//
// No rung: a rung that reads whole vectors multiplies such copies of odd rows. tcgemm_launch is
// given x [R, C] as A and its copy as C; and of two matrices, which one launch copies, the second as
// B and its copy where a pre-activation is written. Rows are contiguous, and those of a copy begin
// at multiples of 16 bytes.
//
// The memory is the limit, and what a thread asks of it at a time: 2 bytes where it takes a load
// for an element of an odd row. Here it loads the two aligned vectors of 16 bytes that its vector of
// the copy lies across, and shifts them. The second is its neighbour's first, so that memory
// delivers it once. Nothing outside of x is read: a vector that x only begins or ends in is made of
// single elements.
//
// grid     blocks of THREADS AT_ONCE vectors of a copy, row by row; those of the second come last
// thread   AT_ONCE vectors, whose loads are on their way together
#include "host/select.cuh"
#include "sm90/early.cuh"
#include "tile/divisor.cuh"
#include "tile/order.cuh"
#include "tile/unaligned.cuh"

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

constexpr int WARPS = 8, THREADS = 32 * WARPS, AT_ONCE = 4;
constexpr int ELEMENTS = UnalignedVector::ELEMENTS;

struct Rows {
  const uint16_t *x, *end;
  uint16_t* copy;
  int64_t pitch, pitch_of_copy;  // elements
  int columns, vectors;          // of a row of the copy; and `count` of all rows
  int count, blocks;
  Divisor by_vectors;
};

__global__ void __launch_bounds__(THREADS) copies(Rows of_a, Rows of_b) {
#if TCGEMM_SM >= 90
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
#endif
  const int block = static_cast<int>(blockIdx.x) - of_a.blocks;
  const Rows rows = block < 0 ? of_a : of_b;
  const int first = (block < 0 ? blockIdx.x : block) * (THREADS * AT_ONCE) + threadIdx.x;
  UnalignedVector vectors[AT_ONCE];
  uint16_t* to[AT_ONCE];
  int left[AT_ONCE];  // columns of the row from the vector on
#pragma unroll
  for (int u = 0; u < AT_ONCE; ++u) {
    const int i = first + u * THREADS, row = rows.by_vectors.quotient(i);
    const int column = (i - row * rows.vectors) * ELEMENTS;
    left[u] = i < rows.count ? rows.columns - column : 0;
    to[u] = rows.copy + row * rows.pitch_of_copy + column;
    const uint16_t* const from = rows.x + row * rows.pitch + column;
    if (left[u] > 0) vectors[u].load(from, from - rows.x, rows.end - from, left[u]);
  }
#pragma unroll
  for (int u = 0; u < AT_ONCE; ++u) {
    if (left[u] <= 0) continue;
    const uint4 vector = vectors[u].vector();
    if (left[u] >= ELEMENTS)
      st_global_16(to[u], vector);
    else
      store_only(to[u], vector, 0, left[u]);
  }
}

// `count` is 0 where it is too large to be counted.
Rows rows_of(const Matrix& x, const Matrix& copy) {
  const int64_t vectors = ceil_div(x.cols, ELEMENTS), count = x.rows * vectors;
  const int64_t blocks = ceil_div(count, THREADS * AT_ONCE);
  const bool fits = blocks * THREADS * AT_ONCE <= INT32_MAX;
  const auto* const from = static_cast<const uint16_t*>(x.data);
  return {from,
          from + (x.rows - 1) * x.row_stride + x.cols,
          static_cast<uint16_t*>(copy.data),
          x.row_stride,
          copy.row_stride,
          static_cast<int>(x.cols),
          static_cast<int>(vectors),
          static_cast<int>(fits ? count : 0),
          static_cast<int>(fits ? blocks : 0),
          Divisor::of(vectors)};
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {
  const Rows of_a = rows_of(gemm.a, gemm.c);
  const bool both = gemm.aux == Aux::write;
  const Rows of_b = both ? rows_of(gemm.b, gemm.c_in) : Rows{};
  if (of_a.count == 0 || (both && of_b.count == 0)) return cudaErrorInvalidConfiguration;
  return start_blocks(copies, of_a.blocks + of_b.blocks, WARPS, 0, stream, of_a, of_b);
}
