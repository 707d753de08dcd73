// Where a schedule of tiles is at each of its numbers: C[number][block of the cluster] is the place of
// the tile's corner in a C of 64 x 64 tiles, row after row, matrix after matrix. C has as many rows as
// there are numbers and as many columns as blocks; A has a row for each row of tiles and B a column for
// each column. The plan has the cluster's blocks (cluster), whether they share A (splits 2) and the
// matrices of a batch (groups).
#include "host/gemm.cuh"
#include "sm90/scheduler.cuh"

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

constexpr int SIDE = 64, GROUP_M = 4;

template <bool SHARES_A>
__global__ void places(Schedule<SIDE, SIDE, GROUP_M, SHARES_A> schedule, float* c) {
  for (int number = 0; number < schedule.tiles(); ++number)
    for (int rank = 0; rank < schedule.cluster; ++rank) {
      int m, n, z;
      schedule.template locate<true>(number, rank, &m, &n, &z);
      c[number * schedule.cluster + rank] =
          static_cast<float>((z * 100 + m / SIDE) * 100 + n / SIDE);
    }
}

template <bool SHARES_A>
int launch_places(const Gemm& gemm, cudaStream_t stream) {
  const int cluster = plan_of(gemm).cluster, rows = static_cast<int>(gemm.a.rows),
            cols = static_cast<int>(gemm.b.cols);
  const auto schedule = Schedule<SIDE, SIDE, GROUP_M, SHARES_A>::of(
      rows * SIDE, cols * SIDE, cluster, plan_of(gemm).groups, true, true, rows, cols, SIDE);
  return launch(places<SHARES_A>, dim3(1), dim3(1), 0, stream, schedule,
                static_cast<float*>(gemm.c.data));
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {
  return plan_of(gemm).splits == 2 ? launch_places<true>(gemm, stream)
                               : launch_places<false>(gemm, stream);
}
