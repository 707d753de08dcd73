// How wgmma_types divides C and a block, and what lies where in a stage.
#pragma once

#include <algorithm>

#include "host/select.cuh"
#include "ptx/wgmma_kmajor.cuh"
#include "sm90/epilogue_chunks.cuh"

namespace tcgemm::sm90 {

constexpr uint32_t ROW_BYTES = 128;  // along K, of a panel's rows
constexpr uint32_t BARRIER_BYTES = 256;

// One way to divide C and a block. HALVES: of 64 rows for each consumer. With PINGPONG a tile is
// one consumer's, else all work on it, in turn downwards. wgmma_types_model.py has the rates and chooses.
// IN_TERMS: B lies in memory as two terms of tf32, where it is split. ACROSS: A lies across K.
template <typename Mode, int CONSUMERS_, int HALVES_, int N_, bool PINGPONG_ = false,
          int SETS_ = 1, bool IN_TERMS_ = false, bool ACROSS_ = false>
struct Tiling {
  static constexpr int CONSUMERS = CONSUMERS_, HALVES = HALVES_, N = N_;
  static constexpr bool PINGPONG = PINGPONG_;
  static constexpr int M = 64 * HALVES * (PINGPONG ? 1 : CONSUMERS);
  static constexpr int THREADS = 128 * (1 + CONSUMERS);
  static constexpr bool IN_TERMS = IN_TERMS_, ACROSS = ACROSS_;
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
      std::min(8u, (MOST_SHARED_BYTES - BARRIER_BYTES - 1024 - CHUNKS_BYTES) / STAGE_BYTES);
  static constexpr uint32_t RING_BYTES = NUM_STAGES * STAGE_BYTES;
};

// What a build is for: the build system compiles tilings of an A across K apart from the others. By
// default a build has both.
#ifdef TCGEMM_ACROSS
constexpr bool BUILT_ACROSS = TCGEMM_ACROSS, BUILT_ALONG = !TCGEMM_ACROSS;
#else
constexpr bool BUILT_ACROSS = true, BUILT_ALONG = true;
#endif

// Calls launch(tiling) with the tiling that is planned, of those that this mode has for an A across K,
// more of them where nothing is fused (PLAIN). By default the last.
template <typename Mode, bool PLAIN, typename Launch>
int with_tiling_across(const Gemm& gemm, const Launch& launch) {
  using Small = Tiling<Mode, 1, 1, 128, false, 1, false, true>;
  using Two = Tiling<Mode, 2, 1, 128, false, 1, false, true>;
  using InTerms = Tiling<Mode, 2, 1, 128, false, 1, true, true>;
  if constexpr (Mode::SPLIT) {
    return plan_of(gemm).repack ? with_planned<InTerms>(gemm, launch)
                                : with_planned<Two, Small>(gemm, launch);
  } else if constexpr (PLAIN) {
    return with_planned<Two, Tiling<Mode, 2, 1, 256, false, 1, false, true>, Small>(gemm, launch);
  } else {
    return with_planned<Two, Small>(gemm, launch);
  }
}

// The same for an A along K.
template <typename Mode, bool PLAIN, typename Launch>
int with_tiling_along(const Gemm& gemm, const Launch& launch) {
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

// The same for the A that is planned.
template <typename Mode, bool PLAIN, typename Launch>
int with_tiling(const Gemm& gemm, const Launch& launch) {
  const bool across = plan_of(gemm).across != 0;
  if constexpr (BUILT_ACROSS && Mode::MMA == Mma::tf32)
    if (across) return with_tiling_across<Mode, PLAIN>(gemm, launch);
  if constexpr (BUILT_ALONG)
    if (!across) return with_tiling_along<Mode, PLAIN>(gemm, launch);
  return cudaErrorNotSupported;
}

}  // namespace tcgemm::sm90
