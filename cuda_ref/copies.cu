// copy[r, k] = x[r, k], of 16-bit elements: rows that begin anywhere, into aligned ones.
//
// No rung: a rung that reads whole vectors multiplies such copies of odd rows. tcgemm_launch is
// given x [R, C] as A, and as B too, and the copy as C. Rows of both are contiguous, and those of
// the copy begin at multiples of 16 bytes.
//
// The memory is the limit, and what a thread asks of it at a time: 2 bytes where it takes a load
// for an element of an odd row. Here it loads the two aligned vectors of 16 bytes that its vector of
// the copy lies across, and shifts them. The second is its neighbour's first, so that memory
// delivers it once. Nothing outside of x is read: a vector that x only begins or ends in is made of
// single elements.
//
// grid     blocks of THREADS AT_ONCE vectors of the copy, row by row
// thread   AT_ONCE vectors, whose loads are on their way together
#include "host/select.cuh"
#include "sm90/early.cuh"
#include "tile/divisor.cuh"
#include "tile/order.cuh"

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

constexpr int WARPS = 8, THREADS = 32 * WARPS, AT_ONCE = 4;
constexpr int ELEMENTS = 8;  // of a vector

struct Rows {
  const uint16_t* x;
  uint16_t* copy;
  int64_t pitch, pitch_of_copy;  // elements
  int columns, vectors;          // of a row of the copy; and `count` of all rows
  int count;
  Divisor by_vectors;
};

// The two aligned vectors that 8 elements lie across, from `shift` elements into the first on.
struct Pair {
  uint32_t words[8];
  int shift;

  __device__ __forceinline__ void load(const uint16_t* from, const uint16_t* begin,
                                       const uint16_t* end) {
    shift = static_cast<int>(reinterpret_cast<uintptr_t>(from) % 16 / 2);
    const uint16_t* const aligned = from - shift;
    if (aligned >= begin && aligned + (shift > 0 ? 2 : 1) * ELEMENTS <= end) {
      set(0, *reinterpret_cast<const uint4*>(aligned));
      if (shift > 0) set(4, *reinterpret_cast<const uint4*>(aligned + ELEMENTS));
      return;
    }
    shift = 0;
#pragma unroll
    for (int i = 0; i < ELEMENTS / 2; ++i) {
      const uint32_t low = from + 2 * i < end ? from[2 * i] : 0;
      const uint32_t high = from + 2 * i + 1 < end ? from[2 * i + 1] : 0;
      words[i] = low | high << 16;
    }
  }

  // The elements, in words[0] to words[3].
  __device__ __forceinline__ void align() {
#pragma unroll
    for (int half = 2; half > 0; half /= 2) {
#pragma unroll
      for (int i = 0; i + half < 8; ++i)
        if (shift / 2 & half) words[i] = words[i + half];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (shift % 2) words[i] = words[i] >> 16 | words[i + 1] << 16;
  }

 private:
  __device__ __forceinline__ void set(int first, uint4 v) {
    words[first] = v.x, words[first + 1] = v.y, words[first + 2] = v.z, words[first + 3] = v.w;
  }
};

__global__ void __launch_bounds__(THREADS) copies(Rows rows, const uint16_t* end) {
#if TCGEMM_SM >= 90
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
#endif
  const int first = blockIdx.x * (THREADS * AT_ONCE) + threadIdx.x;
  Pair pairs[AT_ONCE];
  uint16_t* to[AT_ONCE];
  int left[AT_ONCE];  // columns of the row from the vector on
#pragma unroll
  for (int u = 0; u < AT_ONCE; ++u) {
    const int i = first + u * THREADS, row = rows.by_vectors.quotient(i);
    const int column = (i - row * rows.vectors) * ELEMENTS;
    left[u] = i < rows.count ? rows.columns - column : 0;
    to[u] = rows.copy + row * rows.pitch_of_copy + column;
    if (left[u] > 0) pairs[u].load(rows.x + row * rows.pitch + column, rows.x, end);
  }
#pragma unroll
  for (int u = 0; u < AT_ONCE; ++u) {
    if (left[u] <= 0) continue;
    pairs[u].align();
    const uint32_t(&words)[8] = pairs[u].words;
    if (left[u] >= ELEMENTS) {
      st_global_16(to[u], make_uint4(words[0], words[1], words[2], words[3]));
      continue;
    }
#pragma unroll
    for (int e = 0; e < ELEMENTS - 1; ++e)
      if (e < left[u]) to[u][e] = static_cast<uint16_t>(words[e / 2] >> e % 2 * 16);
  }
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {
  const Matrix &x = gemm.a, &copy = gemm.c;
  const int64_t vectors = ceil_div(x.cols, ELEMENTS), count = x.rows * vectors;
  const int64_t blocks = ceil_div(count, THREADS * AT_ONCE);
  if (blocks * THREADS * AT_ONCE > INT32_MAX) return cudaErrorInvalidConfiguration;
  const auto* const from = static_cast<const uint16_t*>(x.data);
  const Rows rows{from,
                  static_cast<uint16_t*>(copy.data),
                  x.row_stride,
                  copy.row_stride,
                  static_cast<int>(x.cols),
                  static_cast<int>(vectors),
                  static_cast<int>(count),
                  Divisor::of(vectors)};
  return start_blocks(copies, blocks, WARPS, stream, rows,
                      from + (x.rows - 1) * x.row_stride + x.cols);
}
