// C[M, N] = A[M, K] @ B[K, N] by blocks that stay: one per SM, in pairs that share their loads.
//
// Adds over wgmma_specialized: each block walks over many tiles, so that the producer fills the
// ring for the next tile while the consumers still store this one; two blocks of a cluster work on
// tiles one above the other, each loads half of their common tile of B and multicasts it to both;
// C leaves through shared memory by TMA stores that the next tile's multiplies overlap.
// Still missing: K is not divided, so few tiles leave SMs idle (split_k, stream_k).
//
// Tiles: cluster 256 x 256 -> block 128 x 256 x 64, 4 stages of 48 KB -> 2 consumer warpgroups of
// 64 x 256 -> wgmma 64 x 256 x 16. C in chunks of 64 rows x 128 bytes, two buffers a warpgroup.
#include "tile_order.cuh"
#include "wgmma_tile.cuh"

namespace tcgemm {
namespace {

using namespace sm90;

#ifndef TCGEMM_STAGES
#define TCGEMM_STAGES 4
#endif
#ifndef TCGEMM_GROUP
#define TCGEMM_GROUP 8
#endif
#ifndef TCGEMM_SKEW
#define TCGEMM_SKEW 0
#endif
#ifndef TCGEMM_CLUSTER
#define TCGEMM_CLUSTER 2
#endif
constexpr int BLOCK_M = 128, BLOCK_N = 256, BLOCK_K = 64, NUM_STAGES = TCGEMM_STAGES;
constexpr int CLUSTER = TCGEMM_CLUSTER;       // blocks, along M
constexpr int GROUP_M = TCGEMM_GROUP;         // in clusters
constexpr int CONSUMERS = 2, THREADS = 128 * (1 + CONSUMERS);
// 168 registers a thread at launch: 128 * (40 + 2 * 232) = 384 * 168.
constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;
static_assert(PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS <= 168 * (1 + CONSUMERS));
constexpr uint32_t A_BYTES = BLOCK_M * BLOCK_K * 2, B_BYTES = BLOCK_N * BLOCK_K * 2;
constexpr uint32_t STAGE_BYTES = A_BYTES + B_BYTES;
constexpr uint32_t CHUNK_ROWS = 64, CHUNK_BYTES = CHUNK_ROWS * 128, CHUNK_BUFFERS = 2;
constexpr uint32_t SHARED_BYTES =
    NUM_STAGES * STAGE_BYTES + CONSUMERS * CHUNK_BUFFERS * CHUNK_BYTES + 1024;
static_assert(SHARED_BYTES <= 232448 - 64, "an SM gives a block 227 KB, barriers included");

// Writes 128 bytes of each row of a warpgroup's accumulators, columns from `first`, to `chunk` in
// the order in which TMA's 128-byte swizzle reads it: 16-byte unit u of row r is at u ^ (r % 8).
template <typename Out, int REGISTERS>
__device__ __forceinline__ void write_chunk(uint32_t chunk, const float (&d)[REGISTERS],
                                            int first) {
  const uint32_t warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  if constexpr (sizeof(Out) == 2) {
    // Lanes 8 i .. 8 i + 7 address matrix i: rows 8 (i % 2), columns 8 (i / 2) of 16 x 16.
    const uint32_t row = warp * 16 + lane % 16, unit = lane / 16;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float* x = d + (first / 8 + 2 * j) * 4;
      stmatrix_x4(chunk + row * 128 + ((unit + 2 * j) ^ row % 8) * 16, pack<Out>(x[0], x[1]),
                  pack<Out>(x[2], x[3]), pack<Out>(x[4], x[5]), pack<Out>(x[6], x[7]));
    }
  } else {
    const uint32_t row = warp * 16 + lane / 4;  // and row + 8, which swizzles alike
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float* x = d + (first / 8 + j) * 4;
      const uint32_t unit = 2 * j + lane % 4 / 2;
      const uint32_t at = chunk + row * 128 + (unit ^ row % 8) * 16 + lane % 2 * 8;
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(x[0]), "f"(x[1]) : "memory");
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at + 8 * 128), "f"(x[2]), "f"(x[3])
                   : "memory");
    }
  }
}

template <typename In, typename Out, Major A, Major B>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
    wgmma_persistent(const __grid_constant__ CUtensorMap a_map,
                     const __grid_constant__ CUtensorMap b_map,
                     const __grid_constant__ CUtensorMap c_map, PlainOutput plain, int M, int N,
                     int K) {
  extern __shared__ uint8_t shared[];
  __shared__ uint64_t barriers[2 * NUM_STAGES];
  const uint32_t ring = (shared_address(shared) + 1023) / 1024 * 1024;
  const uint32_t full = shared_address(barriers), empty = full + 8 * NUM_STAGES;

  const uint32_t rank = CLUSTER > 1 ? cluster_ctarank() : 0;
  const int clusters_m = (M - 1) / (BLOCK_M * CLUSTER) + 1, tiles_n = (N - 1) / BLOCK_N + 1;
  const int first_tile = blockIdx.x / CLUSTER, step = gridDim.x / CLUSTER;
  const int k_tiles = (K - 1) / BLOCK_K + 1;

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < NUM_STAGES; ++stage) {
      mbarrier_init(full + 8 * stage, 1);
      // One arrival per consumer warp of the cluster: a multicast lands in every block's stage.
      mbarrier_init(empty + 8 * stage, 4 * CONSUMERS * CLUSTER);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  if constexpr (CLUSTER > 1) {
    barrier_cluster_arrive();
    barrier_cluster_wait();
  }

  // The same value in all lanes, and known to be so: each role is one branch of whole warpgroups.
  const int warpgroup = __shfl_sync(0xFFFFFFFF, threadIdx.x / 128, 0);
  if (warpgroup == 0) {
    setmaxnreg_dec<PRODUCER_REGISTERS>();
    if (threadIdx.x == 0) {
      prefetch_tensormap(&a_map);
      prefetch_tensormap(&b_map);
      uint32_t stage = 0, phase = 0;
      for (int t = first_tile; t < clusters_m * tiles_n; t += step) {
        const Tile tile = grouped_tile<GROUP_M>(t, clusters_m, tiles_n);
        const int m = (tile.m * CLUSTER + rank) * BLOCK_M, n = tile.n * BLOCK_N;
        for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
          mbarrier_try_wait_parity(empty + 8 * stage, phase ^ 1);
          const uint32_t barrier = full + 8 * stage, a_tile = ring + stage * STAGE_BYTES;
          mbarrier_arrive_expect_tx(barrier, STAGE_BYTES);
          load_tile<A, BLOCK_M>(a_tile, &a_map, barrier, m, k_tile * BLOCK_K);
          load_tile_multicast<B, BLOCK_N, CLUSTER>(a_tile + A_BYTES, &b_map, barrier, n,
                                                   k_tile * BLOCK_K, rank);
          if (++stage == NUM_STAGES) stage = 0, phase ^= 1;
        }
      }
    }
    __syncwarp();
  } else {
    setmaxnreg_inc<CONSUMER_REGISTERS>();
    const int consumer = warpgroup - 1;
    const uint32_t lane = threadIdx.x % 32;
    const bool stores = threadIdx.x % 128 == 0;  // the thread that owns the TMA stores
    const uint64_t a_desc = wgmma_descriptor(ring + consumer * BYTES_PER_64_MN);
    const uint64_t b_desc = wgmma_descriptor(ring + A_BYTES);
    const uint32_t chunks =
        ring + NUM_STAGES * STAGE_BYTES + consumer * CHUNK_BUFFERS * CHUNK_BYTES;
    float d[BLOCK_N / 2];
    uint32_t stage = 0, phase = 0;
    if (TCGEMM_SKEW > 0 && consumer == 1 && k_tiles > TCGEMM_SKEW)
      mbarrier_try_wait_parity(full + 8 * TCGEMM_SKEW, 0);
    for (int t = first_tile; t < clusters_m * tiles_n; t += step) {
      const Tile tile = grouped_tile<GROUP_M>(t, clusters_m, tiles_n);
      const int m = (tile.m * CLUSTER + rank) * BLOCK_M + consumer * 64, n = tile.n * BLOCK_N;
      for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
        mbarrier_try_wait_parity(full + 8 * stage, phase);
        const uint32_t offset = stage * (STAGE_BYTES >> 4);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < BLOCK_K / MMA_K; ++k)
          wgmma_m64n256k16<In, A, B>(d, a_desc + offset + k * DESCRIPTOR_PER_MMA_K<A>,
                                     b_desc + offset + k * DESCRIPTOR_PER_MMA_K<B>,
                                     k_tile > 0 || k > 0);
        wgmma_commit_group();
        // One group stays in flight; the one before has read its stage, which goes back.
        wgmma_wait_group<1>();
        if (k_tile > 0 && lane < CLUSTER)
          mbarrier_arrive_cluster(empty + 8 * (stage == 0 ? NUM_STAGES - 1 : stage - 1), lane);
        if (++stage == NUM_STAGES) stage = 0, phase ^= 1;
      }
      wgmma_wait_group<0>();
      if (lane < CLUSTER) mbarrier_arrive_cluster(empty + 8 * (stage == 0 ? NUM_STAGES - 1 : stage - 1), lane);

      if (plain.data != nullptr) {
        store_accumulators<Out>(plain, d, m, n, M, N);
        continue;
      }
      constexpr int CHUNK_N = 128 / sizeof(Out);
#pragma unroll
      for (int i = 0; i < BLOCK_N / CHUNK_N; ++i) {
        const uint32_t chunk = chunks + i % CHUNK_BUFFERS * CHUNK_BYTES;
        // The buffer's last store has been read out before anyone writes it again.
        if (stores) cp_async_bulk_wait_group_read<CHUNK_BUFFERS - 1>();
        bar_sync(1 + consumer, 128);
        write_chunk<Out>(chunk, d, i * CHUNK_N);
        fence_proxy_async();
        bar_sync(1 + consumer, 128);
        if (stores) {
          tma_store_2d(&c_map, chunk, n + i * CHUNK_N, m);
          cp_async_bulk_commit_group();
        }
      }
    }
    if (stores) cp_async_bulk_wait_group_read<0>();
  }
  // No block leaves while the other may still write its stages or arrive on its barriers.
  if constexpr (CLUSTER > 1) {
    barrier_cluster_arrive();
    barrier_cluster_wait();
  }
}

}  // namespace
}  // namespace tcgemm

int tcgemm_launch(const tcgemm::Gemm& given, cudaStream_t stream) {
  using namespace tcgemm;
  using namespace tcgemm::sm90;
  const Gemm gemm = row_major_c(given);
  CUtensorMap a_map, b_map, c_map{};
  Major a_major, b_major;
  int sms = 0;
  int error = operand_map(gemm.a, false, gemm.in, BLOCK_M, &a_map, &a_major);
  if (error == cudaSuccess)
    error = operand_map(gemm.b, true, gemm.in, BLOCK_N / CLUSTER, &b_map, &b_major);
  if (error == cudaSuccess) error = multiprocessors(&sms);
  if (error != cudaSuccess) return error;
  PlainOutput plain = plain_output(gemm.c, gemm.out);
  // A TMA store writes whole 16-byte units: with N = 129 it would write 7 elements past the row.
  const bool whole_units = gemm.c.cols * (gemm.out == DType::f32 ? 4 : 2) % 16 == 0;
  if (whole_units && tensor_map(gemm.c, false, gemm.out, gemm.out == DType::f32 ? 32 : 64, CHUNK_ROWS, &c_map) ==
      cudaSuccess)
    plain.data = nullptr;

  const int M = static_cast<int>(gemm.c.rows), N = static_cast<int>(gemm.c.cols);
  const int K = static_cast<int>(gemm.a.cols);
  // As few clusters as finish in the same number of rounds: the rest would wait, and draw power.
  const int tiles = ((M - 1) / (BLOCK_M * CLUSTER) + 1) * ((N - 1) / BLOCK_N + 1);
  const int rounds = (tiles - 1) / (sms / CLUSTER) + 1;
  const int clusters = (tiles - 1) / rounds + 1;
  return select_variant(gemm, a_major, b_major, [&](auto in, auto out, auto a, auto b) {
    using In = typename decltype(in)::type;
    using Out = typename decltype(out)::type;
    return launch(wgmma_persistent<In, Out, decltype(a)::value, decltype(b)::value>,
                  clusters * CLUSTER, THREADS, SHARED_BYTES, stream, a_map, b_map, c_map, plain, M,
                  N, K);
  });
}
