// The launch of an overlapped product: what it is told of the peers, tensor maps of the operands of
// this rank and of what all ranks share, and how many clusters are started.
#pragma once

#include "sm90/epilogue_tma.cuh"
#include "sm90/peers.cuh"

namespace tcgemm::sm90 {

inline thread_local Peers peers_of_call;  // of the next tcgemm_launch of this thread

struct OverlapMaps {
  CUtensorMap own, a, b, c{};  // A's rows of this rank, and of all ranks
  Major b_major;
  bool by_tma;  // C is stored by TMA

  // Boxes of `a_rows` rows of A and `b_columns` columns of B. A cudaError_t.
  template <bool SCATTERS, typename Extra>
  int make(const Gemm& gemm, const Peers& peers, int a_rows, int b_columns) {
    // Gathered rows are as many as ranks have room for; A of a scatter is all there is.
    Matrix all = gemm.a;
    if (!SCATTERS)
      all = {peers.slot, int64_t{peers.world} * peers.chunk, gemm.a.cols, gemm.a.cols, 1};
    Major own_major, a_major;
    const Matrix here = gemm.a.rows > 0 ? gemm.a : all;
    int error = operand_map(here, false, gemm.in, a_rows, &own, &own_major);
    if (error == cudaSuccess) error = operand_map(all, false, gemm.in, a_rows, &a, &a_major);
    if (error == cudaSuccess) error = operand_map(gemm.b, true, gemm.in, b_columns, &b, &b_major);
    if (error != cudaSuccess) return error;
    if (own_major != Major::K || a_major != Major::K) return cudaErrorNotSupported;
    by_tma = gemm.c.rows > 0 && output_map(gemm.c, gemm.out, CHUNK_ROWS, &c,
                                           Extra::BATCHED ? 1 : 0).data == nullptr;
    return cudaSuccess;
  }
};

// As few clusters as finish so many tiles in the same number of waves, and no more than are on the GPU
// at once: they wait for blocks of peers. That is all SMs by the cluster's blocks, as on a whole H100
// or H200, where clusters of two leave no SM out. A cudaError_t.
inline int clusters_of(int64_t tiles, const Peers& peers, unsigned* clusters) {
  int sms = 0;
  const int error = multiprocessors(&sms);
  if (error != cudaSuccess) return error;
  const int most = (sms - peers.spare_sms) / peers.cluster;
  if (tiles > INT32_MAX / 2 || most < 1) return cudaErrorInvalidConfiguration;
  *clusters = static_cast<unsigned>(ceil_div(tiles, ceil_div(tiles, most)));
  return cudaSuccess;
}

}  // namespace tcgemm::sm90

// What the next tcgemm_launch of this thread is told besides its operands.
extern "C" __attribute__((visibility("default"))) void tcgemm_peers(
    const tcgemm::sm90::Peers* peers) {
  tcgemm::sm90::peers_of_call = *peers;
}
