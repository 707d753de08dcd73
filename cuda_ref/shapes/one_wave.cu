// C[M, N] = A[M, K] B[K, N] for a C of few tiles: one to a block, and all of them run at once.
// With alpha, beta C_in, bias and an activation.
//
// ADDS           no loop over tiles; tile, ring and cluster are known to the build. So the
//                producer's step is a handful of instructions: a tile of 64 x 128 takes one each
//                160 ns; wgmma_persistent took 250. It loads the first steps before the warps of
//                its block have met. Of small tiles, and in clusters, what comes first is asked for
//                while the kernel before still ends. A tile whose BLOCK_M is no multiple of 64 is
//                computed transposed. Blocks of a cluster share what they all read, along M or
//                along N; what nobody reads again does not displace the rest of the L2. Where it
//                DIVIDES, blocks of a tile take a part of K each, and a second kernel adds them.
// STILL MISSING  more tiles than SMs: wgmma_persistent. Up to 16 rows, mostly in vain: skinny.
//
// grid       a block for each tile of C and part of K, rounded up to whole clusters
// cluster    CLUSTER_M x CLUSTER_N blocks: those beside each other have the same rows of A, those
//            above each other the same columns of B; each loads its share and multicasts it
// block      CONSUMERS consumer warpgroups and a producer warp step through K by BLOCK_K, over a
//            ring of NUM_STAGES; BLOCK_M x BLOCK_N of C
// warpgroup  MMAS times wgmma 64 x BLOCK_N x 16; stores C in chunks by TMA, or by its threads
#include "one_wave/build.cuh"
#if TCGEMM_DIVIDES
#include "sm90/reduce_kernel.cuh"
#endif

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

// `Out` is the type of C, or float where K is divided and c_map is of the workspace.
template <typename In, typename Out, Major A, Major B, typename Extra>
__global__ void __launch_bounds__(THREADS, 1)
    one_wave(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
             const __grid_constant__ CUtensorMap c_map, Output plain, Wave wave,
             const __grid_constant__ Extra extra) {
  using SharesA = Shares<A, BLOCK_M, A_PEERS>;
  using SharesB = Shares<B, BLOCK_N, B_PEERS>;
  constexpr bool FUSED = std::is_same_v<Extra, Fused>;
  extern __shared__ __align__(1024) uint8_t shared[];
  uint8_t* stages = shared + RING_AT<Out, B>;
  const uint32_t ring = shared_address(stages), full = shared_address(shared);
  const uint32_t empty = full + 8 * STAGES<B>, arrivals = empty + 8 * STAGES<B>;  // of C_in

  const int tiles = wave.rows * wave.cols, part = DIVIDES ? wave.by_tiles.quotient(blockIdx.x) : 0;
  const InCluster block = InCluster::here();
  const auto begin = [&](int of) { return wave.by_splits.quotient(wave.k_tiles * of); };
  const int first = DIVIDES ? begin(part) : 0;
  const int count = DIVIDES ? begin(part + 1) - first : wave.k_tiles;
  const Tile corner = wave.corner(blockIdx.x - part * tiles, block);
  const int m = corner.m, n = corner.n;

  const uint32_t bytes = 128 * (SharesA::rows(wave.a_box) + SharesB::rows(wave.b_box));
  const uint16_t above = block.above(), beside = block.beside();
  const auto load_step = [&](int i, uint32_t stage) {
    const uint32_t barrier = full + 8 * stage, to = ring + stage * STAGE_BYTES<B>;
    const int k = (first + i) * BLOCK_K;
    mbarrier_arrive_expect_tx(barrier, bytes);
    SharesA::load(to, &a_map, barrier, block.n, beside, m, k, wave.a_box, wave.a_once);
    SharesB::load(to + A_BYTES, &b_map, barrier, block.m, above, n, k, wave.b_box, wave.b_once);
  };
  // A block waits for its first loads above all. So three warps begin side by side, and the one
  // that produces loads a few steps before they meet: these need no stage that was read, and no
  // other block of a cluster.
  const int used = min(count, STAGES<B>), ahead = CLUSTER > 1 ? 0 : min(used, AT_ONCE);
  const bool produces = threadIdx.x == 128 * CONSUMERS;
  if (produces) {
    for (int stage = 0; stage < STAGES<B>; ++stage) mbarrier_init(full + 8 * stage, 1);
    fence_mbarrier_init();
    if constexpr (CLUSTER == 1) griddepcontrol_wait();
#pragma unroll 1
    for (int i = 0; i < ahead; ++i) load_step(i, i);
  } else if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES<B>; ++stage)
      mbarrier_init(empty + 8 * stage, 4 * CONSUMERS * PEERS);
    if constexpr (FUSED)
      for (int i = 0; i < CONSUMERS * CHUNKS<Out>; ++i) mbarrier_init(arrivals + 8 * i, 1);
    fence_mbarrier_init();
  } else if (threadIdx.x == 32) {
    prefetch_tensormaps(a_map, b_map, c_map, plain);
    if (L2_PREFETCH > 0) {
      const int steps = count > L2_PREFETCH ? L2_PREFETCH_FIRST : count;
      SharesA::prefetch_l2(&a_map, m, wave.a_box, first, steps, n / BLOCK_N, wave.cols);
      SharesB::prefetch_l2(&b_map, n, wave.b_box, first, steps, m / BLOCK_M, wave.rows);
    }
  }
  zero_rows<THREADS>(stages, STAGE_BYTES<B>, used, SharesA::rows(wave.a_box), BLOCK_M);
  zero_rows<THREADS>(stages + A_BYTES, STAGE_BYTES<B>, used, SharesB::rows(wave.b_box), BLOCK_N);
  __syncthreads();
  if constexpr (CLUSTER > 1) {
    barrier_cluster_arrive_relaxed();
    barrier_cluster_wait();
  }
  const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0);
  griddepcontrol_wait();
  // Not before, or kernels wait beside each other: 64 cubed 1.57 to 1.37 us (one_wave_tile.py).
  if (wave.pdl) griddepcontrol_launch_dependents();

  if (warp >= 4 * CONSUMERS) {
    if constexpr (MOVES_REGISTERS) setmaxnreg_dec<PRODUCER_REGISTERS>();
    if (produces) {
      uint32_t stage = ahead % STAGES<B>, phase = ahead / STAGES<B>;
      for (int i = ahead; i < count; ++i) {
        mbarrier_try_wait_parity(empty + 8 * stage, phase ^ 1);
        load_step(i, stage);
        if (++stage == STAGES<B>) stage = 0, phase ^= 1;
      }
    }
    __syncwarp();
  } else {
    if constexpr (MOVES_REGISTERS) setmaxnreg_inc<CONSUMER_REGISTERS>();
    const int consumer = warp / 4;
    const uint32_t lane = threadIdx.x % 32;
    const uint64_t a_desc = wgmma_descriptor(ring + consumer * MMAS * BYTES_PER_64_MN);
    const uint64_t b_desc = wgmma_descriptor(ring + A_BYTES);
    TmaEpilogue<Out, Extra, MMAS, BLOCK_N, CHUNKS<Out>, IN_ROWS> tile{
        extra, shared + CHUNKS_AT + consumer * CHUNKS_BYTES<Out>,
        arrivals + 8 * consumer * CHUNKS<Out>, 1u + consumer, threadIdx.x % 128 == 0};
    tile.m = m + consumer * MMAS * 64 + part * wave.sums_rows;
    tile.n = n;
    if constexpr (FUSED) tile.begin(wave.M, wave.N);

    const uint32_t waiting = block.peer(lane);  // for this lane's word that a stage is free
    float d[MMAS][BLOCK_N / 2];
    uint32_t stage = 0, phase = 0;
    for (int i = 0; i < count; ++i) {
      mbarrier_try_wait_parity(full + 8 * stage, phase);
      const uint32_t offset = stage * (STAGE_BYTES<B> >> 4);
      wgmma_fence();
      multiply<In, A, B>(d, a_desc + offset, b_desc + offset, i > 0);
      wgmma_commit_group();
      // One group stays in flight; the one before has read its stage, which goes back.
      wgmma_wait_group<1>();
      // Nobody waits for the last ones: their arrivals could reach a block that has left.
      if (i > 0 && i - 1 + STAGES<B> < count && lane < PEERS) {
        const uint32_t barrier = empty + 8 * (stage == 0 ? STAGES<B> - 1 : stage - 1);
        if constexpr (CLUSTER > 1)
          mbarrier_arrive_cluster(barrier, waiting);
        else
          mbarrier_arrive(barrier);
      }
      if (++stage == STAGES<B>) stage = 0, phase ^= 1;
    }
    wgmma_wait_group<0>();
    if (CHUNKS_IN_RING<Out, B>) bar_sync(1 + CONSUMERS, 128 * CONSUMERS);  // all have read
    if constexpr (SWAPS)
#pragma unroll
      for (int of = 0; of < MMAS; ++of, tile.m += 64, tile.buffers += SWAPPED_BYTES<BLOCK_N>)
        store_transposed<Out, BLOCK_N>(tile, &c_map, plain, d[of], wave.M, wave.N);
    else
      tile.store(&c_map, plain, d, wave.M, wave.N);
    if (tile.elected) cp_async_bulk_wait_group_read<0>();
  }
  // No block exits while another may still write its stages.
  if constexpr (CLUSTER > 1) {
    barrier_cluster_arrive_relaxed();
    barrier_cluster_wait();
  }
}

template <typename In, typename Out, typename Extra>
int launch_wave(const Gemm& gemm, const CUtensorMap& c_map, const Output& plain, const Wave& wave,
                const Extra& extra, cudaStream_t stream) {
  CUtensorMap a_map, b_map;
  Major a_major, b_major;
  int error = operand_map(gemm.a, false, gemm.in, wave.a_box, &a_map, &a_major, 0, PANEL,
                          Shares<Major::MN, BLOCK_M, A_PEERS>::DEPTH);
  if (error == cudaSuccess)
    error = operand_map(gemm.b, true, gemm.in, wave.b_box, &b_map, &b_major, 0, PANEL,
                        Shares<Major::MN, BLOCK_N, B_PEERS>::DEPTH);
  if (error != cudaSuccess) return error;
  const unsigned clusters = wave.rows * wave.cols * wave.splits / CLUSTER;
  const int steps = ceil_div(wave.k_tiles, wave.splits);
  return with_majors(a_major, b_major, [&](auto a, auto b) {
    if constexpr (b == Major::K || BLOCK_N > 48)
      return launch_clusters(!IN_ORDER || steps < IN_ORDER_STEPS, one_wave<In, Out, a, b, Extra>,
                             clusters, CLUSTER, dim3(THREADS), shared_bytes<Out, b>(steps), stream,
                             a_map, b_map, c_map, plain, wave, extra);
    return int{cudaErrorNotSupported};  // 48 columns are those of a B along K alone
  });
}

#if !TCGEMM_DIVIDES
template <typename Extra>
int launch_whole(const Gemm& gemm, const Wave& wave, const Extra& extra, cudaStream_t stream) {
  constexpr bool PLAIN = std::is_same_v<Extra, Plain>;
  CUtensorMap c_map{};
  const Output plain = output_for(PLAIN && IN_ROWS, gemm, &c_map, Extra::BATCHED);
  return with_types(gemm, [&](auto in, auto out) {
    using In = decltype(in);
    using Out = decltype(out);
    if constexpr (BUILT<In, Out, PLAIN> && (PLAIN || FUSES<Out>) && (!SWAPS || sizeof(Out) == 2))
      return launch_wave<In, Out>(gemm, c_map, plain, wave, extra, stream);
    return int{cudaErrorNotSupported};
  });
}

int start(const Gemm& gemm, const Wave& wave, cudaStream_t stream) {
  if (is_plain(gemm)) return launch_whole(gemm, wave, Plain{}, stream);
  return launch_whole(gemm, wave, fused_of(gemm), stream);
}

#else

int start(const Gemm& gemm, const Wave& wave, cudaStream_t stream) {
  const int64_t pitch = ceil_div(gemm.c.cols, 4) * 4, stride = wave.sums_rows * pitch;
  Matrix sums{};
  int error = lend_sums(gemm, wave.sums_rows, pitch, wave.splits, stream, &sums);
  if (error != cudaSuccess) return error;
  sums.rows *= wave.splits;  // for TMA one matrix
  CUtensorMap sums_map{};
  const Output plain = output_of(false, sums, DType::f32, &sums_map);
  error = with_types(gemm, [&](auto in, auto out) {
    using In = decltype(in);
    if constexpr (BUILT<In, decltype(out), true> || BUILT<In, decltype(out), false>)
      return launch_wave<In, float>(gemm, sums_map, plain, wave, Plain{}, stream);
    return int{cudaErrorNotSupported};
  });
  if (error != cudaSuccess) return error;
  return launch_add_partials(gemm, rows_of(sums, DType::f32), stride, wave.splits, stream);
}

#endif

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm by_rows = with_rows_of_c(asked), gemm = SWAPS ? transposed(by_rows) : by_rows;
  const int64_t k_tiles = ceil_div(gemm.a.cols, BLOCK_K);
  const int64_t rows = ceil_div(ceil_div(gemm.c.rows, BLOCK_M), CLUSTER_M) * CLUSTER_M;
  const int64_t cols = ceil_div(ceil_div(gemm.c.cols, BLOCK_N), CLUSTER_N) * CLUSTER_N;
  const Plan plan = plan_of(gemm);
  const int splits = !DIVIDES ? 1 : plan.splits > 0 ? plan.splits : 2;
  if (k_tiles < splits || !does_all_of(gemm)) return cudaErrorInvalidValue;  // no part is empty
  if (std::max(rows * cols, k_tiles) > INT32_MAX / splits) return cudaErrorInvalidConfiguration;
  const auto number = [](int64_t n) { return static_cast<int>(n); };
  const Wave wave{number(gemm.c.rows), number(gemm.c.cols), number(k_tiles), splits,
                  number(rows), number(cols), cols == CLUSTER_N, rows == CLUSTER_M,
                  Shares<Major::K, BLOCK_M, A_PEERS>::box(gemm.c.rows),
                  Shares<Major::K, BLOCK_N, B_PEERS>::box(gemm.c.cols),
                  plan.no_pdl == 0, DIVIDES ? number(rows) * BLOCK_M : 0,
                  Divisor::of(rows * cols), Divisor::of(splits),
                  Divisor::of(std::min(rows / CLUSTER_M, cols / CLUSTER_N))};
  return start(gemm, wave, stream);
}
