// How wgmma_types divides C and a block, and what lies where in a stage.
#pragma once

#include <algorithm>

#include "host/select.cuh"
#include "ptx/wgmma_kmajor.cuh"
#include "sm90/epilogue_chunks.cuh"

namespace tcgemm::sm90 {

constexpr uint32_t ROW_BYTES = 128;        // along K, of a panel's rows
constexpr uint32_t SHARED_BYTES = 232448;  // 227 KB, what an SM gives a block
constexpr uint32_t BARRIER_BYTES = 256;

// One way to divide C and a block. HALVES: of 64 rows for each consumer. With PINGPONG a tile is
// one consumer's, else all work on it, in turn downwards. wgmma_types.py has the rates and chooses.
// IN_TERMS: B lies in memory as two terms of tf32, where it is split.
template <typename Mode, int CONSUMERS_, int HALVES_, int N_, bool PINGPONG_ = false,
          int SETS_ = 1, bool IN_TERMS_ = false>
struct Tiling {
  static constexpr int CONSUMERS = CONSUMERS_, HALVES = HALVES_, N = N_;
  static constexpr bool PINGPONG = PINGPONG_;
  static constexpr int M = 64 * HALVES * (PINGPONG ? 1 : CONSUMERS);
  static constexpr int THREADS = 128 * (1 + CONSUMERS);
  static constexpr bool IN_TERMS = IN_TERMS_;
  static constexpr bool SPLITS_B = Mode::SPLIT && !IN_TERMS;  // in shared memory
  // Of 168 or 128 registers a thread at launch. One consumer has all that a thread can have.
  static constexpr int PRODUCER_REGISTERS = CONSUMERS == 3 ? 32 : SPLITS_B ? 88 : 40;
  static constexpr int CONSUMER_REGISTERS = CONSUMERS == 3 ? 160 : SPLITS_B ? 208 : 232;
  // Consumers that wait for their accumulators begin one after the other: their waits do not meet.
  static constexpr int SETS = SETS_;
  static constexpr bool STAGGERED = Mode::PROMOTE && SETS == 1 && CONSUMERS > 1;
  // A stage: A, B, and the low terms of B, loaded or written there.
  static constexpr uint32_t A_BYTES = M * ROW_BYTES, B_BYTES = N * ROW_BYTES;
  static constexpr uint32_t LOADED_BYTES = A_BYTES + B_BYTES * (IN_TERMS ? 2 : 1);
  static constexpr uint32_t STAGE_BYTES = LOADED_BYTES + (SPLITS_B ? B_BYTES : 0);
  static constexpr int CHUNK_BUFFERS = N == 192 ? 3 : 2;  // a divisor of the chunks of 64 rows
  static constexpr uint32_t CHUNKS_BYTES = CONSUMERS * CHUNK_BUFFERS * CHUNK_BYTES;
  static constexpr uint32_t NUM_STAGES =
      std::min(8u, (SHARED_BYTES - BARRIER_BYTES - 1024 - CHUNKS_BYTES) / STAGE_BYTES);
  static constexpr uint32_t RING_BYTES = NUM_STAGES * STAGE_BYTES;
};

// Calls launch(tiling) with the tiling that is planned, of those that this mode has, more of them
// where nothing is fused (PLAIN). By default the last.
template <typename Mode, bool PLAIN, typename Launch>
int with_tiling(const Gemm& gemm, const Launch& launch) {
  using Small = Tiling<Mode, 1, 1, 128, false, 2>;
  using InTerms = Tiling<Mode, 2, 1, 128, false, 1, true>;
  if constexpr (Mode::SPLIT)
    return plan_of(gemm).repack ? with_planned<InTerms>(gemm, launch)
                                : with_planned<Tiling<Mode, 2, 1, 128>, Small>(gemm, launch);
  else if constexpr (Mode::PROMOTE && PLAIN)
    return with_planned<Tiling<Mode, 2, 1, 128, false, 2>, Tiling<Mode, 3, 1, 128>,
                        Small>(gemm, launch);
  else if constexpr (Mode::PROMOTE)
    return with_planned<Tiling<Mode, 2, 1, 128, false, 2>, Small>(gemm, launch);
  else if constexpr (PLAIN && Mode::MMA == Mma::tf32)
    return with_planned<Tiling<Mode, 2, 2, 128, true>, Tiling<Mode, 2, 2, 192, true>,
                        Tiling<Mode, 2, 1, 256>, Small>(gemm, launch);
  else if constexpr (PLAIN)
    return with_planned<Tiling<Mode, 2, 2, 128, true>, Tiling<Mode, 2, 2, 192, true>,
                        Small>(gemm, launch);
  else  // 192 accumulators leave too few registers for what is fused
    return with_planned<Tiling<Mode, 2, 2, 128, true>, Small>(gemm, launch);
}

}  // namespace tcgemm::sm90
