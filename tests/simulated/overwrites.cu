// The source of a copy that is written before the copy has ended, and accesses of one warp around a
// copy. The plan has the cluster's blocks (cluster), the kernel (splits) and a number (groups) that the
// kernel explains.
#include "host/gemm.cuh"
#include "host/select.cuh"

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

__device__ float* at(uint32_t address) {
  return static_cast<float*>(simulator::shared_pointer(address));
}

__device__ void meet() {
  barrier_cluster_arrive();
  barrier_cluster_wait();
}

__device__ uint32_t ring_of(const uint8_t* shared) {
  return (shared_address(shared) + 1023) / 1024 * 1024;
}

// Lane 0 stores four floats by a bulk copy, and writes the first of them before it waits (0) or after.
__global__ void stores(CUtensorMap map, int late) {
  extern __shared__ uint8_t shared[];
  const uint32_t ring = ring_of(shared);
  for (int i = 0; i < 4; ++i) at(ring)[i] = 1.0f;
  fence_proxy_async();
  tma_store_2d(&map, ring, 0, 0);
  cp_async_bulk_commit_group();
  if (!late) *at(ring) = 7.0f;
  cp_async_bulk_wait_group_read<0>();
  if (late) *at(ring) = 7.0f;
}

// Lane 0 stores four floats to C by a bulk copy of bytes, and does something wrong but with 1: writes
// the source before it waits (0), has no fence (2), copies other than whole units (3). It looks whether
// the copy has arrived before it waits for that.
__global__ void stores_bytes(float* c, int way) {
  extern __shared__ uint8_t shared[];
  const uint32_t ring = ring_of(shared);
  for (int i = 0; i < 4; ++i) at(ring)[i] = 1.0f;
  if (way != 2) fence_proxy_async();
  cp_async_bulk_global(c, ring, way == 3 ? 20 : 16);
  cp_async_bulk_commit_group();
  if (way == 0) *at(ring) = 7.0f;
  cp_async_bulk_wait_group_read<0>();
  const bool early = c[0] == 1.0f;
  if (way != 0) *at(ring) = 7.0f;
  cp_async_bulk_wait_all();
  if (early) c[0] = 9.0f;
}

// The first block sends four floats to all others, waits for the word of `words` of them and writes:
// by the thread that sent them, or with 10 more by one of the other warp.
__global__ void sends(float* c, int number, int cluster) {
  extern __shared__ uint8_t shared[];
  __shared__ uint64_t barriers[2];
  const uint32_t from = ring_of(shared), to = from + 128, rank = cluster_ctarank();
  const uint32_t received = shared_address(barriers), told = received + 8, words = number % 10;
  if (threadIdx.x == 0) {
    mbarrier_init(received, 1);
    mbarrier_init(told, words > 0 ? words : 1);
    mbarrier_arrive_expect_tx(received, 16);
    for (int i = 0; i < 4; ++i) at(from)[i] = 1.0f;
    fence_proxy_async();
    fence_mbarrier_init();
  }
  meet();
  if (rank == 0) {
    if (threadIdx.x == 0) {
      for (uint32_t other = 1; other < static_cast<uint32_t>(cluster); ++other)
        cp_async_bulk_cluster(to, from, 16, received, other);
      if (words > 0) mbarrier_try_wait_parity(told, 0);
      c[0] = 1.0f;
    }
    __syncthreads();
    if (threadIdx.x == (number < 10 ? 0 : 40)) *at(from) = 7.0f;
  } else if (threadIdx.x == 0) {
    mbarrier_try_wait_parity(received, 0);
    if (rank <= words) mbarrier_arrive_cluster(told, 0);
    c[rank] = *at(to);
  }
  meet();
}

// Lane 1 writes what lane 0 reads after issuing a copy, with no barrier of the warp or with one.
__global__ void lanes(CUtensorMap map, float* c, int ordered) {
  extern __shared__ uint8_t shared[];
  __shared__ uint64_t barriers[1];
  __shared__ float x[2];
  const uint32_t ring = ring_of(shared), full = shared_address(barriers);
  if (threadIdx.x == 0) {
    mbarrier_init(full, 1);
    mbarrier_arrive_expect_tx(full, 16);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x < 2) x[threadIdx.x] = 0.0f;
  __syncthreads();  // the last lane to come goes on first, and that is lane 1 in reverse
  if (threadIdx.x == 1) x[1] = 1.0f;
  if (threadIdx.x == 0) cp_async_bulk_tensor_2d(ring, &map, full, 0, 0);
  if (ordered) __syncwarp();
  if (threadIdx.x == 0) c[blockIdx.x] = x[1];
  mbarrier_try_wait_parity(full, 0);
  meet();
}

// A warp of one lane meets itself so many times.
__global__ void synchronises(float* c, int times) {
  for (int i = 0; i < times; ++i) __syncwarp();
  c[blockIdx.x] = 1.0f;
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {
  const Plan plan = plan_of(gemm);
  const unsigned cluster = static_cast<unsigned>(plan.cluster);
  float* c = static_cast<float*>(gemm.c.data);
  if (plan.splits == 1) {
    const CUtensorMap map{c, 4, 1, 16, 4, 1, 4, {}};
    return launch_clusters(stores, 1, cluster, dim3(1), 4096, stream, map, plan.groups);
  }
  if (plan.splits == 3) {
    const CUtensorMap map{gemm.b.data, 4, 1, 16, 4, 1, 4, {}};
    return launch_clusters(lanes, 1, cluster, dim3(32), 4096, stream, map, c, plan.groups);
  }
  if (plan.splits == 4)
    return launch_clusters(synchronises, 1, cluster, dim3(1), 0, stream, c, plan.groups);
  if (plan.splits == 5)
    return launch_clusters(stores_bytes, 1, cluster, dim3(1), 4096, stream, c, plan.groups);
  return launch_clusters(sends, 1, cluster, dim3(64), 4096, stream, c, plan.groups, plan.cluster);
}
