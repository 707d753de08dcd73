// The mainloops of wgmma_types: how a consumer warpgroup accumulates its tile of C over a ring of stages.
//
// A stage holds BLOCK_K = 128 bytes along K: a panel of A, one of B, and for tf32x3 one of B's low
// parts. Each loop waits for its stages, gives them back, and leaves the sums in registers, with no
// wgmma in flight.
#pragma once

#include "ptx/wgmma_kmajor.cuh"
#include "wgmma_types/registers.cuh"
#include "wgmma_types/ring.cuh"

namespace tcgemm::sm90 {

// One step along K of as many halves of 64 rows as `d` has: d (+)= A B.
template <typename Mode, typename T, typename Acc, int HALVES, int REGISTERS>
__device__ __forceinline__ void multiply_step(const Operands<T>& from, uint32_t stage,
                                              Acc (&d)[HALVES][REGISTERS], bool accumulate) {
  constexpr uint64_t PER_MMA_K = DESCRIPTOR_PER_MMA_K<Major::K>;
  const uint64_t a = from.a_descriptor(stage), b = from.b_descriptor(stage);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int half = 0; half < HALVES; ++half)
      wgmma_kmajor<Mode::MMA>(d[half], a + half * (BYTES_PER_64_MN >> 4) + k * PER_MMA_K,
                              b + k * PER_MMA_K, accumulate || k > 0);
  }
  wgmma_commit_group();
}

// d = A B, all of K in the tensor cores' own accumulators. in_last_step: called when the last stage is full.
template <typename Mode, typename T, typename Acc, int HALVES, int REGISTERS, typename Body>
__device__ __forceinline__ void accumulate(Ring<T::NUM_STAGES>& ring, const Operands<T>& from,
                                            int k_tiles, Acc (&d)[HALVES][REGISTERS],
                                            const Body& in_last_step) {
  for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
    mbarrier_try_wait_parity(ring.full(), ring.phase);
    if (k_tile + 1 == k_tiles) in_last_step();
    multiply_step<Mode>(from, ring.stage, d, k_tile > 0);
    ring.advance();
    // One group stays in flight; the one before has read its stage, which goes back.
    wgmma_wait_group<1>();
    if (k_tile > 0) ring.release(2, from.cluster);
  }
}

// The same with A in registers, where the next step's are loaded while this one is multiplied.
template <typename T, int REGISTERS>
__device__ __forceinline__ void accumulate_registers(Ring<T::NUM_STAGES>& ring,
                                                     const Operands<T>& from, int k_tiles,
                                                     float (&d)[1][REGISTERS]) {
  constexpr uint64_t PER_MMA_K = DESCRIPTOR_PER_MMA_K<Major::K>;
  uint32_t even[16], odd[16];
  const auto step = [&](const uint32_t(&a)[16], uint32_t(&next)[16], int k_tile) {
    const uint64_t b = from.b_descriptor(ring.stage);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k)
      wgmma_tf32_registers(d[0], &a[4 * k], b + k * PER_MMA_K, k_tile > 0 || k > 0);
    wgmma_commit_group();
    ring.advance();
    if (k_tile + 1 < k_tiles) mbarrier_try_wait_parity(ring.full(), ring.phase);
    wgmma_wait_group<1>();  // the step before has read its stage, and `next`
    if (k_tile > 0) ring.release(2, from.cluster);
    if (k_tile + 1 < k_tiles) load_rows<T::ACROSS>(from.a(ring.stage), next);
  };
  mbarrier_try_wait_parity(ring.full(), ring.phase);
  load_rows<T::ACROSS>(from.a(ring.stage), even);
  int k_tile = 0;
  for (; k_tile + 2 < k_tiles; k_tile += 2) {
    step(even, odd, k_tile);
    step(odd, even, k_tile + 1);
  }
  step(even, odd, k_tile);
  if (k_tile + 1 < k_tiles) step(odd, even, k_tile + 1);
  wgmma_wait_group<0>();  // it reads registers that are others' behind this function
}

template <int REGISTERS>
__device__ __forceinline__ void add(float (&sums)[REGISTERS], const float (&d)[REGISTERS]) {
#pragma unroll
  for (int i = 0; i < REGISTERS; ++i) sums[i] += d[i];
}

// The same with every step summed from zero and added to `sums` in float32. With two sets of
// accumulators one is added while the other is multiplied; with one, another consumer multiplies.
// after_step: called when a step has been multiplied.
template <typename Mode, typename T, int REGISTERS, int SETS, typename Body>
__device__ __forceinline__ void accumulate_promoted(Ring<T::NUM_STAGES>& ring,
                                                    const Operands<T>& from, int k_tiles,
                                                    float (&sums)[REGISTERS],
                                                    float (&d)[SETS][1][REGISTERS],
                                                    const Body& after_step) {
  const auto multiply = [&](float(&d)[1][REGISTERS]) {
    mbarrier_try_wait_parity(ring.full(), ring.phase);
    multiply_step<Mode>(from, ring.stage, d, false);
    ring.advance();
  };
#pragma unroll
  for (int i = 0; i < REGISTERS; ++i) sums[i] = 0;
  if constexpr (SETS == 1) {
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
      multiply(d[0]);
      wgmma_wait_group<0>();
      ring.release(1, from.cluster);
      after_step();
      add(sums, d[0][0]);
    }
  } else {
    const auto step_over = [&](auto& next, const auto& last) {
      multiply(next);
      wgmma_wait_group<1>();
      ring.release(2, from.cluster);
      add(sums, last[0]);
    };
    multiply(d[0]);
    int k_tile = 1;
    for (; k_tile + 1 < k_tiles; k_tile += 2) {
      step_over(d[1], d[0]);
      step_over(d[0], d[1]);
    }
    if (k_tile < k_tiles) {
      step_over(d[1], d[0]);
      wgmma_wait_group<0>();
      add(sums, d[1][0]);
    } else {
      wgmma_wait_group<0>();
      add(sums, d[0][0]);
    }
    ring.release(1, from.cluster);
  }
}

// d = A B of a step of float32, the small products first: lo hi + hi lo + hi hi. A is in registers, and
// B's low terms lie in the stage behind B.
template <typename T>
__device__ __forceinline__ void multiply_terms(const Operands<T>& from, uint32_t stage,
                                               const SplitA& a, float (&d)[64]) {
  constexpr uint64_t PER_MMA_K = DESCRIPTOR_PER_MMA_K<Major::K>;
  constexpr uint64_t LOW = T::B_BYTES >> 4;
  const uint64_t b = from.b_descriptor(stage);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) wgmma_tf32_registers(d, &a.lo[4 * k], b + k * PER_MMA_K, k > 0);
#pragma unroll
  for (int k = 0; k < 4; ++k) wgmma_tf32_registers(d, &a.hi[4 * k], b + LOW + k * PER_MMA_K, true);
#pragma unroll
  for (int k = 0; k < 4; ++k) wgmma_tf32_registers(d, &a.hi[4 * k], b + k * PER_MMA_K, true);
  wgmma_commit_group();
}

// sums = A B of float32, every step summed from zero and added in float32. Other warps write B's low
// terms to the stage. What a consumer does between its multiplies, another's multiplies hide.
// after_step: as above.
template <typename T, typename Body>
__device__ __forceinline__ void accumulate_three_products(Ring<T::NUM_STAGES>& ring,
                                                   const Operands<T>& from, int k_tiles,
                                                   float (&sums)[64], const Body& after_step) {
  SplitA a;
  float d[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) sums[i] = 0;
  for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
    mbarrier_try_wait_parity(ring.full(), ring.phase);
    a.template load<T::ACROSS>(from.a(ring.stage));
    mbarrier_try_wait_parity(ring.split(), ring.phase);
    multiply_terms(from, ring.stage, a, d);
    ring.advance();
    wgmma_wait_group<0>();
    ring.release(1, from.cluster);
    after_step();
    add(sums, d);
  }
}

// The same where B's low terms were loaded. A of the next step is split while this one is multiplied.
template <typename T, typename Body>
__device__ __forceinline__ void accumulate_loaded_terms(Ring<T::NUM_STAGES>& ring,
                                                        const Operands<T>& from, int k_tiles,
                                                        float (&sums)[64], const Body& after_step) {
  SplitA even, odd;
  float d[64];
  const auto step = [&](const SplitA& a, SplitA& next, bool more) {
    multiply_terms(from, ring.stage, a, d);
    ring.advance();
    if (more) {
      mbarrier_try_wait_parity(ring.full(), ring.phase);
      next.template load<T::ACROSS>(from.a(ring.stage));
    }
    wgmma_wait_group<0>();
    ring.release(1, from.cluster);
    after_step();
    add(sums, d);
  };
#pragma unroll
  for (int i = 0; i < 64; ++i) sums[i] = 0;
  mbarrier_try_wait_parity(ring.full(), ring.phase);
  even.template load<T::ACROSS>(from.a(ring.stage));
  int k_tile = 0;
  for (; k_tile + 2 < k_tiles; k_tile += 2) {
    step(even, odd, true);
    step(odd, even, true);
  }
  const bool two = k_tile + 1 < k_tiles;
  step(even, odd, two);
  if (two) step(odd, even, false);
}

}  // namespace tcgemm::sm90
