// Blocks of a cluster that share their loads, send each other their sums, and read each other's
// shared memory. float32; the plan has the cluster's blocks (cluster), the kernel (splits: 1, 2, 3) and
// its fault (groups), a number of the list at the kernel, 0 for none.
//
// C[block] is the sum of 8 rows of A for each block of the cluster: all of a cluster have the same.
#include "host/gemm.cuh"
#include "host/select.cuh"

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

constexpr int ROWS = 8, COLS = 32;  // of a box: ROWS swizzled lines of 128 bytes
constexpr uint32_t BOX_BYTES = ROWS * COLS * 4;

struct Product {
  const float* a;
  float* c;
  int K, fault;
};

__device__ uint32_t ring_of(const uint8_t* shared) {
  return (shared_address(shared) + 1023) / 1024 * 1024;
}

__device__ float* at(uint32_t address) {
  return static_cast<float*>(simulator::shared_pointer(address));
}

__device__ void meet() {
  barrier_cluster_arrive();
  barrier_cluster_wait();
}

// A thread loads, and multicasts to all; a warp adds. Two stages.
//
// 1 no barrier after mbarrier_init, 2 the last block is in no mask, 3 a warp tells its own block
// alone, 4 no word of the last block is waited for, 5 no barrier at the end, 6 nobody waits for a
// stage, 7 only this block's own bytes are expected, 8 a mask of a block too many, 9 an empty mask.
__global__ void multicasts(CUtensorMap map, Product p, int cluster) {
  extern __shared__ uint8_t shared[];
  __shared__ uint64_t barriers[4];
  const uint32_t ring = ring_of(shared), full = shared_address(barriers), empty = full + 16;
  const uint32_t stage_bytes = cluster * BOX_BYTES, rank = cluster_ctarank();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < 2; ++stage) {
      mbarrier_init(full + 8 * stage, 1);
      mbarrier_init(empty + 8 * stage, p.fault == 4 ? cluster - 1 : cluster);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  if (p.fault != 1) barrier_cluster_arrive_relaxed(), barrier_cluster_wait();
  const int first = (blockIdx.x - rank) * ROWS, steps = p.K / COLS;
  if (threadIdx.x == 32) {
    uint16_t mask = (1 << cluster) - 1;
    if (p.fault == 2) mask >>= 1;
    if (p.fault == 8) mask = mask << 1 | 1;
    if (p.fault == 9) mask = 0;
    for (int step = 0; step < steps; ++step) {
      const uint32_t stage = step % 2, barrier = full + 8 * stage;
      mbarrier_try_wait_parity(empty + 8 * stage, step / 2 % 2 ^ 1);
      mbarrier_arrive_expect_tx(barrier, p.fault == 7 ? BOX_BYTES : stage_bytes);
      cp_async_bulk_tensor_2d_multicast(ring + stage * stage_bytes + rank * BOX_BYTES, &map, barrier,
                                        step * COLS, first + rank * ROWS, mask);
    }
  }
  if (threadIdx.x < 32) {
    for (int step = 0; step < steps; ++step) {
      const uint32_t stage = step % 2, box = ring + stage * stage_bytes;
      if (p.fault != 6) mbarrier_try_wait_parity(full + 8 * stage, step / 2 % 2);
      float sum = 0.0f;
      for (int row = 0; row < ROWS * cluster; ++row)
        sum += *at(box + row * 128 + (threadIdx.x / 4 ^ row % 8) * 16 + threadIdx.x % 4 * 4);
      p.c[blockIdx.x * p.K + step * COLS + threadIdx.x] = sum;
      __syncwarp();
      if (threadIdx.x < cluster)
        mbarrier_arrive_cluster(empty + 8 * stage, p.fault == 3 ? rank : threadIdx.x);
    }
  }
  __syncwarp();
  if (p.fault != 5) barrier_cluster_arrive_relaxed(), barrier_cluster_wait();
}

// Each block adds its own 8 rows of COLS columns, and sends the sums to the others.
//
// 1 no barrier after mbarrier_init, 2 no fence_proxy_async, 3 the sums are overwritten once they are
// sent, 4 no barrier at the end, 5 all send to one place, 6 16 bytes more are expected, 7 20 bytes are
// sent, 8 nobody waits, 9 to a block that the cluster has not.
__global__ void transfers(Product p, int cluster) {
  extern __shared__ uint8_t shared[];
  __shared__ uint64_t barriers[1];
  const uint32_t own = ring_of(shared), parts = own + BOX_BYTES, rank = cluster_ctarank();
  const uint32_t received = shared_address(barriers), lane = threadIdx.x;
  if (lane == 0) {
    mbarrier_init(received, 1);
    mbarrier_arrive_expect_tx(received, (cluster - 1) * COLS * 4 + (p.fault == 6 ? 16 : 0));
    fence_mbarrier_init();
  }
  if (p.fault != 1) barrier_cluster_arrive_relaxed();
  const float* a = p.a + blockIdx.x * ROWS * p.K + lane;
  float sum = 0.0f;
  for (int row = 0; row < ROWS; ++row) sum += a[row * p.K];
  *at(own + 4 * lane) = sum;
  if (p.fault != 2) fence_proxy_async();
  __syncthreads();
  if (p.fault != 1) barrier_cluster_wait();
  const uint32_t slot = p.fault == 5 ? 0 : rank;
  if (lane < cluster && lane != rank)
    cp_async_bulk_cluster(parts + slot * COLS * 4, own, p.fault == 7 ? 20 : COLS * 4, received,
                          p.fault == 9 ? lane + cluster : lane);
  __syncwarp();
  if (p.fault == 3) *at(own + 4 * lane) = 0.0f;
  if (p.fault != 8) mbarrier_try_wait_parity(received, 0);
  for (int other = 0; other < cluster; ++other)
    if (other != rank) sum += *at(parts + (other * COLS + lane) * 4);
  p.c[blockIdx.x * p.K + lane] = sum;
  if (p.fault != 4) barrier_cluster_arrive_relaxed(), barrier_cluster_wait();
}

// Each block adds its own 8 rows, COLS columns a turn, and reads the others' sums.
//
// 1 the first barrier makes nothing visible, 2 there is none, 3 none before the next turn, 4 none at
// the end, 5 of a block that the cluster has not, 6 a thread comes to a barrier twice, 7 one waits
// that has not come, 8 a block leaves at once, 9 beyond what the block asked for.
__global__ void reads(Product p, int cluster) {
  __shared__ float own[COLS];
  const uint32_t lane = threadIdx.x, rank = cluster_ctarank(), turns = p.K / COLS;
  for (uint32_t turn = 0; turn < turns; ++turn) {
    const float* a = p.a + blockIdx.x * ROWS * p.K + turn * COLS + lane;
    float sum = 0.0f;
    for (int row = 0; row < ROWS; ++row) sum += a[row * p.K];
    own[lane] = sum;
    if (p.fault == 8 && rank == 0) return;
    if (p.fault == 6 && lane == 7) barrier_cluster_arrive();
    if (p.fault == 7 && lane == 7) barrier_cluster_wait();
    if (p.fault == 1) barrier_cluster_arrive_relaxed(), barrier_cluster_wait();
    if (p.fault != 1 && p.fault != 2) meet();
    for (uint32_t i = 1; i < cluster; ++i) {
      const uint32_t place = shared_address(own + lane);
      sum += ld_shared_cluster(p.fault == 9 ? place + (100 << 10) : place,
                               p.fault == 5 ? cluster : (rank + i) % cluster);
    }
    p.c[blockIdx.x * p.K + turn * COLS + lane] = sum;
    const bool last = turn == turns - 1;
    if (p.fault != (last ? 4 : 3)) barrier_cluster_arrive_relaxed(), barrier_cluster_wait();
  }
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {
  const Plan plan = plan_of(gemm);
  const int K = static_cast<int>(gemm.a.cols), cluster = plan.cluster;
  const unsigned clusters = static_cast<unsigned>(gemm.c.rows / cluster);
  const Product p{static_cast<const float*>(gemm.a.data), static_cast<float*>(gemm.c.data), K,
                  plan.groups};
  const size_t bytes = 1024 + 2 * cluster * BOX_BYTES;
  if (plan.splits == 3)
    return launch_clusters(reads, clusters, cluster, dim3(COLS), 0, stream, p, cluster);
  if (plan.splits == 2)
    return launch_clusters(transfers, clusters, cluster, dim3(COLS), bytes, stream, p, cluster);
  const CUtensorMap map{gemm.a.data, static_cast<uint64_t>(K), static_cast<uint64_t>(gemm.a.rows),
                        static_cast<uint64_t>(K) * 4, COLS, ROWS, 4, {}};
  return launch_clusters(multicasts, clusters, cluster, dim3(64), bytes, stream, map, p, cluster);
}
