// What wgmma_persistent and one_wave are asked besides the product, how much of it a build knows, and
// C_in, or the pre-activation Z in its place, on the way from shared memory to the accumulators.
#pragma once

#include "ptx/mma.cuh"
#include "sm90/epilogue_chunks.cuh"
#include "tile/derivatives.cuh"

namespace tcgemm::sm90 {

// What a build fuses: an Activation, and bits of what else. A build that knows it is one row of
// instructions; where the macro is missing it is found out at run time, in 3 to 5 % of the time of
// 4096 cubed: instructions that are jumped over still have to be fetched. Such a build knows no Z.
enum : int {
  ANY_ACTIVATION = 7,  // found out at run time
  ADDS_C_IN = 8,
  ADDS_BIAS = 16,
  BATCHES = 32,
  WRITES_Z = 64 * static_cast<int>(Aux::write),
  READS_Z = 64 * static_cast<int>(Aux::read),
};
#ifdef TCGEMM_FUSES
constexpr bool KNOWN = true;
constexpr int FUSES = TCGEMM_FUSES;
#else
constexpr bool KNOWN = false;
constexpr int FUSES = BATCHES;
#endif
constexpr bool KNOWS_ACTIVATION = KNOWN && FUSES % ADDS_C_IN != ANY_ACTIVATION;

// What a build is for: the build system compiles one case at a time. By default it is all cases.
template <typename In, typename Out, bool PLAIN>
constexpr bool BUILT =
#ifdef TCGEMM_IN
    PLAIN == TCGEMM_PLAIN &&
    std::is_same_v<Out, float> == (TCGEMM_OUT == static_cast<int>(DType::f32)) &&
    std::is_same_v<In, __half> == (TCGEMM_IN == static_cast<int>(DType::f16));
#else
    true;
#endif

inline int fuses(const Gemm& gemm) {
  const bool adds_c_in = gemm.c_in.data && gemm.aux == Aux::none;
  return static_cast<int>(gemm.activation) | (adds_c_in ? ADDS_C_IN : 0) |
         (gemm.bias.data ? ADDS_BIAS : 0) | (gemm.batch > 1 ? BATCHES : 0) |
         64 * static_cast<int>(gemm.aux);
}

// Whether the build does what is asked besides the product; one for batches takes a batch of one.
inline bool does_all_of(const Gemm& gemm) {
  if (!KNOWN) return gemm.aux == Aux::none;
  constexpr int FREE = (FUSES & BATCHES) | (KNOWS_ACTIVATION ? 0 : ANY_ACTIVATION);
  return (fuses(gemm) | FREE) == FUSES;
}

// What is asked besides the product: nothing, or something.
struct Plain {
  static constexpr bool BATCHED = false;
};
struct Fused : Epilogue<float> {
  static constexpr bool BATCHED = FUSES & BATCHES;
  CUtensorMap c_in_map;
  int c_in_step;  // 0 where the batch shares C_in, else 1
  bool c_in_by_tma;

  // C_in, or Z in its place.
  __device__ bool reads_c_in() const {
    return KNOWN ? FUSES & (ADDS_C_IN | READS_Z) : c_in != nullptr;
  }
  __device__ bool adds_bias() const { return KNOWN ? FUSES & ADDS_BIAS : bias.data != nullptr; }
  __device__ Activation activates() const {
    return KNOWS_ACTIVATION ? static_cast<Activation>(FUSES % ADDS_C_IN) : activation;
  }
};

inline Fused fused_of(const Gemm& gemm) {
  Fused fused{epilogue_of<float>(gemm), {}, gemm.c_in.batch_stride != 0, false};
  const int64_t bytes = bytes_of(gemm.out), batch = Fused::BATCHED ? gemm.batch : 0;
  // What is written has whole units of 16 bytes in a row: see output_map.
  fused.c_in_by_tma =
      gemm.c_in.data && (gemm.aux != Aux::write || gemm.c_in.cols * bytes % 16 == 0) &&
      tensor_map(gemm.c_in, false, gemm.out, static_cast<uint32_t>(128 / bytes), CHUNK_ROWS,
                 &fused.c_in_map, batch) == cudaSuccess;
  return fused;
}

// Calls use(d[first + i], element) for a thread's elements of a chunk of C_in in shared memory:
// write_chunk's way back.
template <typename Out, int REGISTERS, typename Use>
__device__ __forceinline__ void with_chunk(uint32_t chunk, float (&d)[REGISTERS], int first,
                                           Use use) {
  const uint32_t warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  PairOf<Out> pair;
  if constexpr (sizeof(Out) == 2) {
    const uint32_t row = warp * 16 + lane % 16, unit = lane / 16;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t words[4];
      ldmatrix_x4<false>(words, chunk + row * 128 + ((unit + 2 * j) ^ row % 8) * 16);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        pair.word = words[i / 2];
        use(d[first + 8 * j + i], widen<float>(pair.elements[i % 2]));
      }
    }
  } else {
    const uint32_t row = warp * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const uint32_t unit = i / 4 * 2 + lane % 4 / 2;
      const uint32_t at = chunk + (row + i / 2 % 2 * 8) * 128 + (unit ^ row % 8) * 16 +
                          lane % 2 * 8 + i % 2 * 4;
      use(d[first + i], __uint_as_float(ld_shared_u32(at)));
    }
  }
}

// d[first ..] times the derivative of the activation at a chunk of Z.
template <typename Out, int REGISTERS>
__device__ __forceinline__ void differentiate_chunk(uint32_t chunk, Activation activation,
                                                    float (&d)[REGISTERS], int first) {
  const auto by = [&](auto constant) {
    with_chunk<Out>(chunk, d, first,
                    [](float& x, float z) { x = through<decltype(constant)::value>(x, z); });
  };
  switch (activation) {
    case Activation::gelu: return by(Constant<Activation::gelu>{});
    case Activation::gelu_tanh: return by(Constant<Activation::gelu_tanh>{});
    case Activation::silu: return by(Constant<Activation::silu>{});
    default: return by(Constant<Activation::relu>{});
  }
}

}  // namespace tcgemm::sm90
