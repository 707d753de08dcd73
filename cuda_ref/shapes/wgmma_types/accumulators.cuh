// The mainloops of wgmma_types: how a consumer warpgroup accumulates its tile of C over a ring of stages.
//
// A stage holds BLOCK_K = 128 bytes along K: a panel of A, one of B, and for tf32x3 one of B's low
// parts. Each loop waits for its stages, gives them back, and leaves the sums in registers, with no
// wgmma in flight.
#pragma once

#include "wgmma_types/tf32x3.cuh"
#include "ptx/wgmma_kmajor.cuh"
#include "sm90/tile.cuh"

namespace tcgemm::sm90 {

// A warp's place in a ring of STAGES stages. Barriers of 8 bytes each, from `barriers` on: full (has
// been loaded), empty (has been read), split (low parts are there).
template <uint32_t STAGES>
struct Ring {
  uint32_t barriers;
  uint32_t stage = 0, phase = 0;

  __device__ uint32_t full() const { return barriers + 8 * stage; }
  __device__ uint32_t empty() const { return full() + 8 * STAGES; }
  __device__ uint32_t split() const { return full() + 16 * STAGES; }
  __device__ void advance() {
    if (++stage == STAGES) stage = 0, phase ^= 1;
  }
  __device__ void skip(uint32_t steps) {
    stage += steps;
    phase ^= stage / STAGES & 1;
    stage %= STAGES;
  }
  // Gives back the stage that was read `ago` steps before the next one, to every block of a cluster.
  __device__ void release(uint32_t ago, int cluster) const {
    const uint32_t at = stage < ago ? stage + STAGES - ago : stage - ago;
    const int lane = threadIdx.x % 32;
    if (lane < cluster) mbarrier_arrive_cluster(barriers + 8 * (STAGES + at), lane);
  }
};

// Where a consumer finds its rows of A, and all of B, in a stage.
template <typename T>
struct Operands {
  uint32_t stages;  // address of the first
  int row;          // of the consumer in the tile
  int cluster;

  __device__ uint32_t a(uint32_t stage) const {
    return stages + stage * T::STAGE_BYTES + row * 128;
  }
  __device__ uint64_t a_descriptor(uint32_t stage) const { return wgmma_descriptor(a(stage)); }
  __device__ uint64_t b_descriptor(uint32_t stage) const {
    return wgmma_descriptor(stages + stage * T::STAGE_BYTES + T::A_BYTES);
  }
};

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

// A warp's 16 rows of a stage of A in registers: hi and lo of what wgmma takes for each of the four 8
// along K.
struct SplitA {
  uint32_t hi[16], lo[16];

  // 16-byte unit u of row r is at u ^ r % 8: the 32 lanes' words lie in 32 banks.
  __device__ __forceinline__ void load(uint32_t tile) {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t row = threadIdx.x % 128 / 32 * 16 + lane / 4;  // and row + 8, which swizzles alike
    const uint32_t at = tile + row * 128 + lane / 4 * 16 + lane % 4 * 4;
#pragma unroll
    for (uint32_t i = 0; i < 16; ++i) hi[i] = ld_shared_u32((at ^ i / 2 * 16) + i % 2 * 1024);
    split<CUT_OFF>(hi, lo);
  }
};

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
    a.load(from.a(ring.stage));
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
      next.load(from.a(ring.stage));
    }
    wgmma_wait_group<0>();
    ring.release(1, from.cluster);
    after_step();
    add(sums, d);
  };
#pragma unroll
  for (int i = 0; i < 64; ++i) sums[i] = 0;
  mbarrier_try_wait_parity(ring.full(), ring.phase);
  even.load(from.a(ring.stage));
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
