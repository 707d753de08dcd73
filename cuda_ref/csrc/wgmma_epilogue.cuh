// What a Hopper rung fuses, on a warpgroup's accumulators in registers: the same function as
// epilogue.cuh, over a chunk of 64 rows x 128 bytes of C at a time.
//
// A thread's part of a chunk is 16 words of C: rows m + 16 w + l / 4 and 8 below it (w: its warp of
// the warpgroup, l its lane), columns n + 8 j + 2 (l % 4) and the next. C_in is read ahead of its
// use, so that its way from memory passes under the chunk before it, or under the last multiplies.
#pragma once

#include "epilogue.cuh"
#include "wgmma_tile.cuh"

namespace tcgemm::sm90 {

constexpr int CHUNK_ROWS = 64;
constexpr uint32_t CHUNK_BYTES = CHUNK_ROWS * 128;
template <typename Out>
constexpr int CHUNK_N = 128 / sizeof(Out);  // columns
template <typename Out>
constexpr int CHUNK_REGISTERS = CHUNK_N<Out> / 2;  // accumulators of a thread

// Where a thread's first accumulator of a chunk lies in C.
struct Place {
  int m, n;
  __device__ Place(int m, int n)
      : m(m + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4), n(n + threadIdx.x % 4 * 2) {}
};

// A thread's part of a chunk of C_in: for each j the two words, or pairs of words, of its two rows.
template <typename Out>
struct ChunkOfCIn {
  union {
    Out elements[CHUNK_REGISTERS<Out>];
    uint32_t words[16];
  };

  template <typename Acc>
  __device__ __forceinline__ void load(const Epilogue<Acc>& e, int m, int n, int M, int N,
                                       int64_t batch) {
    if (e.c_in == nullptr) return;
    const Place at(m, n);
    constexpr int WORDS = 2 * sizeof(Out) / 4;  // of a pair of neighbours
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = at.m + 8 * half;
      const Out* line = static_cast<const Out*>(e.c_in) + batch * e.batch_stride +
                        row * e.row_stride;
#pragma unroll
      for (int j = 0; j < CHUNK_N<Out> / 8; ++j) {
        const int64_t col = at.n + 8 * j;
        const int to = 2 * j + half;  // pair
        if (e.c_in_vectors && row < M && col + 1 < N) {
          if constexpr (WORDS == 1) {
            words[to] = *reinterpret_cast<const uint32_t*>(line + col);
          } else {
            const uint2 pair = *reinterpret_cast<const uint2*>(line + col);
            words[2 * to] = pair.x;
            words[2 * to + 1] = pair.y;
          }
        } else {
          elements[2 * to] = row < M && col < N ? line[col * e.col_stride] : Out(0);
          elements[2 * to + 1] = row < M && col + 1 < N ? line[(col + 1) * e.col_stride] : Out(0);
        }
      }
    }
  }
};

// x[e] = combine(x[e], v[its row or column]), clipped to M and N. d: the accumulators, of which the
// chunk's begin at `first`.
template <typename In, typename Acc, int COUNT, int REGISTERS, typename Combine>
__device__ __forceinline__ void with_vector(const Vector& v, Acc (&d)[REGISTERS], int first,
                                            Place at, int M, int N, Combine combine) {
  if (v.data == nullptr) return;
  const In* data = static_cast<const In*>(v.data);
  if (v.col_stride == 0) {
    const Acc upper = widen<Acc>(data[min(at.m, M - 1) * v.row_stride]);
    const Acc lower = widen<Acc>(data[min(at.m + 8, M - 1) * v.row_stride]);
#pragma unroll
    for (int e = 0; e < COUNT; ++e) d[first + e] = combine(d[first + e], e % 4 < 2 ? upper : lower);
    return;
  }
  In of_column[COUNT / 2];
#pragma unroll
  for (int e = 0; e < COUNT / 2; ++e)
    of_column[e] = data[min(at.n + e / 2 * 8 + e % 2, N - 1) * v.col_stride];
#pragma unroll
  for (int e = 0; e < COUNT; ++e)
    d[first + e] = combine(d[first + e], widen<Acc>(of_column[e / 4 * 2 + e % 2]));
}

// x Phi(x), the normal distribution's Phi: erfc(z / sqrt 2) / 2 = 2^P(z) for z = |x|, with P fitted so
// that z 2^P(z) is within 6e-8; no cancellation where x is negative. Past z = 8 the term is below
// 1e-14 and stays there. 10 instructions, one of them on the special function unit.
__device__ __forceinline__ float fast_gelu(float x) {
  const float z = fminf(fabsf(x), 8.0f);
  float p = 3.30935865e-05f;
  p = p * z - 0.000769226315f;
  p = p * z + 0.00808073774f;
  p = p * z - 0.0534121361f;
  p = p * z - 0.45877095f;
  p = p * z - 1.15120171f;
  p = p * z - 0.99999306f;
  return relu(x) - z * ex2_approx(p);
}

// x / (1 + e^-t)
__device__ __forceinline__ float times_logistic(float x, float t) {
  return __fdividef(x, 1.0f + ex2_approx(fminf(-1.44269504f * t, 126.0f)));
}

// A chunk's sums, d[first] and on, get all but the activation. (m, n): its corner.
template <typename Out, typename Acc, int REGISTERS>
__device__ __forceinline__ void add_to_chunk(const Epilogue<Acc>& e, const ChunkOfCIn<Out>& c_in,
                                             Acc (&d)[REGISTERS], int first, int m, int n, int M,
                                             int N) {
  constexpr int COUNT = CHUNK_REGISTERS<Out>;
  const Place at(m, n);
  const auto times = [](Acc x, Acc y) { return multiply_add(x, y, Acc(0)); };
  if constexpr (std::is_same_v<Acc, float>) {
    with_vector<float, Acc, COUNT>(e.scale_a, d, first, at, M, N, times);
    with_vector<float, Acc, COUNT>(e.scale_b, d, first, at, M, N, times);
  }
  if (e.alpha != Acc(1)) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) d[first + i] = times(e.alpha, d[first + i]);
  }
  if (e.c_in != nullptr) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
      d[first + i] = multiply_add(e.beta, widen<Acc>(c_in.elements[i]), d[first + i]);
  }
  with_vector<Out, Acc, COUNT>(e.bias, d, first, at, M, N,
                               [](Acc x, Acc y) { return multiply_add(Acc(1), y, x); });
}

// A warpgroup's sums become values of C, still to be narrowed. (m, n): their corner in matrix `batch`
// of C; c_in: the first chunk of C_in, already loaded.
template <typename Out, typename Acc, int REGISTERS>
__device__ __forceinline__ void finish_chunks(const Epilogue<Acc>& e, const ChunkOfCIn<Out>& c_in,
                                              Acc (&d)[REGISTERS], int m, int n, int M, int N,
                                              int64_t batch) {
  constexpr int STEP = CHUNK_REGISTERS<Out>;
  ChunkOfCIn<Out> next = c_in;
#pragma unroll
  for (int first = 0; first < REGISTERS; first += STEP) {
    const ChunkOfCIn<Out> now = next;
    const int col = n + 2 * first;
    if (first + STEP < REGISTERS) next.load(e, m, col + CHUNK_N<Out>, M, N, batch);
    add_to_chunk(e, now, d, first, m, col, M, N);
  }
  const auto activate = [&](auto function) {
#pragma unroll
    for (int i = 0; i < REGISTERS; ++i) d[i] = function(d[i]);
  };
  if (e.activation == Activation::none) return;
  if constexpr (std::is_same_v<Acc, float>) {
    switch (e.activation) {
      case Activation::gelu: return activate([](float x) { return fast_gelu(x); });
      case Activation::gelu_tanh:
        return activate([](float x) {
          return times_logistic(x, 1.59576912f * (x + 0.044715f * x * x * x));
        });
      case Activation::silu: return activate([](float x) { return times_logistic(x, x); });
      default: break;
    }
  }
  activate([](Acc x) { return relu(x); });
}

}  // namespace tcgemm::sm90
