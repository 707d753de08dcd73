// K in parts, for rungs whose kernel takes a part of K for a matrix of a batch: the sums of the parts
// go to a workspace, and a second kernel adds them in a fixed order and finishes C.
#pragma once

#include "sm90/reduce_kernel.cuh"

namespace tcgemm::sm90 {

// What a build is for: the build system compiles products with parts of K apart from the others. By
// default a build has both.
#ifdef TCGEMM_DIVIDES
constexpr bool BUILT_FOR_PARTS = TCGEMM_DIVIDES, BUILT_WHOLE = !TCGEMM_DIVIDES;
#else
constexpr bool BUILT_FOR_PARTS = true, BUILT_WHOLE = true;
#endif

// The parts of K that are planned, 1 where K stays whole.
inline int parts_of(const Gemm& gemm) { return std::max(1, plan_of(gemm).splits); }

// Steps along K, of `step` elements each, of every part but the last, which may have fewer.
inline int64_t steps_of_part(const Gemm& gemm, int64_t step) {
  return ceil_div(ceil_div(gemm.a.cols, step), parts_of(gemm));
}

// Calls launch(stored), which starts the kernel that stores the sums of the parts: `stored` is the
// problem as a batch of parts, with the workspace for its C. Tensor maps, and copies of operands,
// are still of `gemm`, once for all parts. Then C is made of the sums. A cudaError_t.
template <typename Acc, typename Out, typename Launch>
int launch_parts(const Gemm& gemm, int64_t step, cudaStream_t stream, const Launch& launch) {
  const int parts = parts_of(gemm);
  const int64_t each = steps_of_part(gemm, step);
  if (gemm.batch > 1 || (parts - 1) * each * step >= gemm.a.cols ||
      parts * each * step > MOST_ELEMENTS)
    return cudaErrorInvalidConfiguration;  // an empty part, or coordinates that TMA does not have
  Gemm stored = gemm;
  const int64_t rows = gemm.c.rows, count = ADD_COUNT<Acc>;
  const int64_t pitch = ceil_div(gemm.c.cols, count) * count;  // whole units for TMA
  int error = lend_sums(gemm, rows, pitch, parts, stream, &stored.c, sizeof(Acc));
  if (error != cudaSuccess) return error;
  stored.out = std::is_same_v<Acc, double>    ? DType::f64
               : std::is_same_v<Acc, int32_t> ? DType::s32
                                              : DType::f32;
  stored.batch = parts;
  stored.a.batch_stride = stored.b.batch_stride = 0;
  error = launch(stored);
  if (error != cudaSuccess) return error;
  return launch_add_partials<Acc, Out>(gemm, rows_of(stored.c, stored.out), rows * pitch, parts,
                                       stream);
}

}  // namespace tcgemm::sm90
