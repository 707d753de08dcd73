// One row of A by a B whose rows begin anywhere, for gemv.cu: units of 16 bytes, each from the
// address below, so that a unit is 16 bytes of memory and not of a row.
#pragma once

#include "gemv/columns.cuh"
#include "tile/order.cuh"

namespace tcgemm::sm90 {

constexpr int ODD_WARPS = 16, ODD_THREADS = 32 * ODD_WARPS;
constexpr int AT_ONCE_UNITS = 6;  // of a thread, on their way: with more, registers are spilled
constexpr int AT_ONCE_WORDS = 8;  // the same of the row of A
constexpr int MOST_ODD_K = 32768;  // of a row of A in shared memory

// Elements by which the 16 bytes that hold element `at` of B begin before it.
__device__ __forceinline__ int shift_of(const Operands& o, int64_t at) {
  return static_cast<int>((reinterpret_cast<uintptr_t>(o.b) / 2 + static_cast<uint64_t>(at)) % 8);
}

// The 8 elements from `from`, a multiple of 16 bytes, on. Where not all of these may be read, `whole`
// is false, and those of the line come alone, which has `along` elements, the unit's first at `first`.
__device__ __forceinline__ uint4 unit_of(const uint16_t* from, bool whole, int first, int along) {
  if (whole) return *reinterpret_cast<const uint4*>(from);
  uint32_t e[8];
#pragma unroll
  for (int i = 0; i < 8; ++i)
    e[i] = static_cast<unsigned>(first + i) < static_cast<unsigned>(along) ? from[i] : 0;
  return make_uint4(e[0] | e[1] << 16, e[2] | e[3] << 16, e[4] | e[5] << 16, e[6] | e[7] << 16);
}

__host__ __device__ constexpr int odd_units(int64_t K) { return static_cast<int>((K + 14) / 8); }  // of any shift

// B by columns: `each` threads to a column, a power of two. The grid is a multiple of 8 blocks, so
// that all columns of a block begin at one place of their 16 bytes, and so does its copy of the row
// of A. Calls store(sum, n) in a thread of the block that has column n.
template <typename In, typename Store>
__device__ __forceinline__ void multiply_odd_columns(const Operands& o, int each, Store store) {
  if (blockIdx.x >= o.N) return;
  const int columns = ODD_THREADS / each, column = threadIdx.x / each, t = threadIdx.x % each;
  const int shift = shift_of(o, int64_t{blockIdx.x} * o.b_stride);
  const int units = (o.K + shift + 7) / 8, all = odd_units(o.K);
  const auto start_of = [&](unsigned n) { return o.b + n * o.b_stride - shift; };

  // What comes first, while the row of A is brought. A line has 8 units.
  const unsigned N = o.N, first = blockIdx.x + gridDim.x * column;
  if (first < N && t % 4 == 0)
#pragma unroll
    for (int i = 0; i < AT_ONCE_UNITS; ++i)
      if (const int u = t + i * each; u < units && (u > 0 || shift == 0))
        prefetch_global_l2(start_of(first) + 8 * u);
  griddepcontrol_wait();
  uint32_t* row = reinterpret_cast<uint32_t*>(dynamic_shared());
  float* sums = reinterpret_cast<float*>(row + 4 * all);
  for (int w = threadIdx.x; w < 4 * all; w += AT_ONCE_WORDS * ODD_THREADS) {
    uint32_t words[AT_ONCE_WORDS];
#pragma unroll
    for (int i = 0; i < AT_ONCE_WORDS; ++i) {
      const int k = 2 * (w + i * ODD_THREADS) - shift;
      words[i] = k >= 0 && k < o.K ? o.a[k * o.a_step] : 0;
      if (k >= -1 && k + 1 < o.K) words[i] |= uint32_t{o.a[(k + 1) * o.a_step]} << 16;
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE_WORDS; ++i)
      if (w + i * ODD_THREADS < 4 * all) row[w + i * ODD_THREADS] = words[i];
  }
  __syncthreads();

  const uint32_t row_at = shared_address(row);
  // Without gaps between columns a unit may reach into the next one, but not out of B.
  const bool gaps = o.b_stride != o.K || o.K < 8;
  for (unsigned of_block = blockIdx.x; of_block < N; of_block += gridDim.x * columns) {
    const unsigned n = of_block + gridDim.x * column;
    float parts[4] = {};
    if (n < N) {
      const uint16_t* from = start_of(n);
      const int low = gaps || n == 0 ? 0 : -8, high = gaps || n == N - 1 ? o.K : o.K + 8;
      for (int first_unit = t; first_unit < units; first_unit += AT_ONCE_UNITS * each) {
        uint4 b[AT_ONCE_UNITS];
#pragma unroll
        for (int i = 0; i < AT_ONCE_UNITS; ++i) {
          const int u = first_unit + i * each, k = 8 * u - shift;
          b[i] = u < units ? unit_of(from + 8 * u, k >= low && k + 8 <= high, k, o.K)
                           : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE_UNITS; ++i) {
          const int u = first_unit + i * each, k = 8 * u - shift;
          if (u >= units) break;
          const uint4 a = ld_shared_v4(row_at + 16 * u);
          const uint32_t a_words[4] = {a.x, a.y, a.z, a.w};
          uint32_t b_words[4] = {b[i].x, b[i].y, b[i].z, b[i].w};
          if (k < 0 || k + 8 > o.K)  // a neighbouring column's, which may be NaN
#pragma unroll
            for (int j = 0; j < 4; ++j)
              b_words[j] &= (k + 2 * j >= 0 && k + 2 * j < o.K ? 0xFFFFu : 0) |
                            (k + 2 * j >= -1 && k + 2 * j + 1 < o.K ? 0xFFFF0000u : 0);
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const float2 x = two_floats<In>(a_words[j]), y = two_floats<In>(b_words[j]);
            parts[j] += x.x * y.x;
            parts[j] += x.y * y.y;
          }
        }
      }
    }
    float sum = (parts[0] + parts[1]) + (parts[2] + parts[3]);
    for (int lanes = min(each, 32) / 2; lanes > 0; lanes /= 2)
      sum += __shfl_xor_sync(0xFFFFFFFF, sum, lanes);
    if (each <= 32) {
      if (t == 0 && n < N) store(sum, static_cast<int>(n));
      continue;
    }
    const int warps = each / 32;  // of a column
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (t == 0 && n < N) {
      sum = 0;
      for (int w = 0; w < warps; ++w) sum += sums[column * warps + w];
      store(sum, static_cast<int>(n));
    }
    __syncthreads();  // the sums have been read
  }
}

// B by rows: strips of 8 (lanes - 1) columns, each for a cluster of `splits` blocks that divide K.
// A warp has every eighth row: all of them begin at one place of their 16 bytes, so the columns that
// a lane's unit holds are the same in each, and its sums stay where they are. What it holds beside
// the strip is added up as well, and left.
__host__ __device__ constexpr int strip_of(int lanes) { return 8 * (lanes - 1); }

constexpr int odd_bytes(bool k_major, int64_t K, int lanes) {
  return k_major ? 16 * odd_units(K) + 4 * ODD_WARPS
                 : 4 * (ODD_WARPS * 8 * (lanes + 1) + strip_of(lanes));
}

template <typename In, typename Store>
__device__ __forceinline__ void multiply_odd_rows(const Operands& o, int lanes, int splits,
                                                  Store store) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, unit = lane % lanes;
  const int rank = splits > 1 ? cluster_ctarank() : 0, strip = strip_of(lanes);
  const int n0 = blockIdx.x / splits * strip;
  const int shift = shift_of(o, warp % 8 * o.b_stride + n0);
  const int n = n0 - shift + 8 * unit;  // of the unit's first element
  // Of the rows of its kind: those of `lanes` lanes, of two warps, of all blocks, in turn.
  const int turns = ODD_WARPS / 8 * (32 / lanes);
  const unsigned apart = 8 * turns * splits, K = o.K;
  unsigned k = warp % 8 + 8 * (rank * turns + warp / 8 * (32 / lanes) + lane / lanes);
  // Without gaps between rows a unit may reach into the next one, but not out of B.
  const bool gaps = o.b_stride != o.N || o.N < 8, below = n < 0, beyond = n + 8 > o.N;
  const unsigned first_row = below ? gaps ? K : 1 : 0, end_row = beyond ? gaps ? 0 : K - 1 : K;

  griddepcontrol_wait();
  float sums[8] = {};
  for (; k < K; k += AT_ONCE_UNITS * apart) {
    uint4 b[AT_ONCE_UNITS];
    uint16_t a[AT_ONCE_UNITS];
#pragma unroll
    for (int i = 0; i < AT_ONCE_UNITS; ++i) {
      const unsigned row = k + i * apart;
      const bool whole = row >= first_row && row < end_row;
      b[i] = row < K && n < o.N ? unit_of(o.b + row * o.b_stride + n, whole, n, o.N)
                                : make_uint4(0, 0, 0, 0);
      a[i] = row < K ? o.a[row * o.a_step] : uint16_t{0};
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE_UNITS; ++i) {
      const float x = two_floats<In>(a[i]).x;
      const uint32_t words[4] = {b[i].x, b[i].y, b[i].z, b[i].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 y = two_floats<In>(words[j]);
        sums[2 * j] += x * y.x;
        sums[2 * j + 1] += x * y.y;
      }
    }
  }

  for (int other = 16; other >= lanes; other /= 2)
#pragma unroll
    for (int e = 0; e < 8; ++e) sums[e] += __shfl_xor_sync(0xFFFFFFFF, sums[e], other);
  float* all = reinterpret_cast<float*>(dynamic_shared());  // of each warp, from 8 before the strip
  const int each = 8 * (lanes + 1);
  if (lane < lanes)
#pragma unroll
    for (int e = 0; e < 8; ++e) all[warp * each + 8 - shift + 8 * unit + e] = sums[e];
  __syncthreads();
  float* totals = all + ODD_WARPS * each;
  for (int i = threadIdx.x; i < strip; i += ODD_THREADS) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < ODD_WARPS; ++w) sum += all[w * each + 8 + i];
    if (splits > 1)
      totals[i] = sum;
    else if (n0 + i < o.N)
      store(sum, static_cast<int>(n0 + i));
  }
  if (splits == 1) return;
  barrier_cluster_arrive();
  barrier_cluster_wait();
  for (int i = rank + splits * threadIdx.x; i < strip; i += splits * ODD_THREADS) {
    float sum = 0;
#pragma unroll 4
    for (int p = 0; p < splits; ++p) sum += ld_shared_cluster(shared_address(totals + i), p);
    if (n0 + i < o.N) store(sum, static_cast<int>(n0 + i));
  }
  // No block exits while another may still read its sums.
  barrier_cluster_arrive_relaxed();
  barrier_cluster_wait();
}

// A launch: threads as Schedule has them, the grid, and shared memory of a block.
struct Odd {
  int threads;
  int64_t clusters;
  int bytes;
};

inline Odd odd_of(const Operands& o, const Plan& plan, bool k_major, int blocks) {
  if (k_major) {
    const int each = ODD_THREADS / (plan.block_n > 0 ? plan.block_n : ODD_WARPS);
    const int64_t needed = ceil_div(o.N, ODD_THREADS / each);
    const int64_t most = std::max(blocks / 8, 1);
    return {each, 8 * std::min(ceil_div(needed, 8), most), odd_bytes(true, o.K, each)};
  }
  const int lanes = plan.block_n > 0 ? plan.block_n / 8 + 1 : 16;
  return {lanes, ceil_div(o.N, strip_of(lanes)), odd_bytes(false, o.K, lanes)};
}

}  // namespace tcgemm::sm90
