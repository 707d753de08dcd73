// C[M, N] = A[M, K] B[K, N] with M up to 128 (or N, by C^T = B^T A^T): B streams past, once.
//
// ADDS           the operands change places: 64 columns of B are wgmma's 64 rows and the few rows
//                of A its narrow n, so that little is multiplied in vain. What counts is how fast B
//                arrives: a cluster divides K, so that few columns occupy most SMs, and its sums
//                meet in shared memory; a long K is divided further for a second kernel, which adds
//                the sums. With many columns a block takes tiles in turn. The next kernel starts
//                while this one ends, and asks for its first stages. A tile's width may be one by
//                which N fits the SMs: 6144 is 128 times 48.
// STILL MISSING  with 65 rows and more A comes into an SM again for every BLOCK_N columns of B, and
//                an SM takes no more than some 85 KB a microsecond. Tiles that do not divide by the
//                SMs (stream_k.cu).
//
// grid       one cluster per BLOCK_N columns of C; or as many blocks as fit the GPU
// cluster    1 to MOST_SPLITS blocks, each of which multiplies its part of K; 1 of more parts
// block      a producer warp and consumer warpgroups step through K by BLOCK_K, over a ring of
//            up to MOST_STAGES stages, each BLOCK_N x 128 bytes of B and TILE_M x 128 of A
// warpgroup  wgmma 64 x TILE_M x 16: C^T; TILE_M 16, 64 or 128; at most 64 accumulators a thread;
//            where BLOCK_N is no multiple of 64, wgmma 64 x 48 or 56 x 16: C
#include "sm90/reduce_kernel.cuh"
#include "skinny/tile.cuh"

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

constexpr int MOST_M = 128;
constexpr int MOST_STAGES = 16;
constexpr uint32_t SM_BYTES = 220 * 1024;  // for the rings of all blocks of an SM
constexpr int L2_PREFETCH = 4;  // stages, before the kernel before this one has finished
constexpr int AT_ONCE = 8;  // steps that are loaded before the warps of a block have met
constexpr int PDL_STEPS = 8;  // stages before its last at which a block lets the next kernel begin

// `c` has rows of neighbours: those of C, or with c_transposed its columns.
template <typename In, typename Out, Major A, Major B, int TILE_M, int BLOCK_N>
__global__ void __launch_bounds__(Shape<TILE_M, BLOCK_N, B>::THREADS)
    skinny(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
           Rows c, bool c_transposed, Epilogue<float> epilogue, SkinnySchedule schedule) {
  using Tile = Shape<TILE_M, BLOCK_N, B>;
  constexpr uint32_t STAGE_BYTES = Tile::STAGE_BYTES, B_BYTES = Tile::B_BYTES;
  constexpr int CONSUMERS = Tile::CONSUMERS;
  extern __shared__ uint8_t shared[];
  __shared__ uint64_t barriers[2 * MOST_STAGES + 1];
  const uint32_t ring = (shared_address(shared) + 1023) / 1024 * 1024;
  const uint32_t full = shared_address(barriers), empty = full + 8 * MOST_STAGES;
  const uint32_t received = empty + 8 * MOST_STAGES;

  const int splits = schedule.splits, stages = schedule.stages;
  const bool meets = splits > 1 && schedule.sums.data == nullptr;  // in a cluster, of these blocks
  const Divisor& by_splits = schedule.by_splits;
  const int k_tiles = (schedule.K - 1) / BLOCK_K + 1;
  const int start = by_splits.quotient(blockIdx.x), rank = blockIdx.x - start * splits;
  const int first = by_splits.quotient(k_tiles * rank);
  const int count = by_splits.quotient(k_tiles * (rank + 1)) - first;
  // Behind the ring lie the sums of a block that persists, or what the others of a cluster send.
  const uint32_t behind = ring + stages * STAGE_BYTES;
  const uint32_t sums_at = schedule.persists ? behind : ring;
  const auto share_of = [&](int n) {
    return Share{c_transposed ? min(c.rows - n, BLOCK_N) : c.rows, splits};
  };

  const auto load_step = [&](int tile, int i, uint32_t stage) {
    const int k = (first + i) * BLOCK_K;
    const uint32_t barrier = full + 8 * stage, b_tile = ring + stage * STAGE_BYTES;
    mbarrier_arrive_expect_tx(barrier, (BLOCK_N + schedule.a_rows) * 128);
    each_box_of_b<Tile, B>(tile * BLOCK_N, k, [&](uint32_t at, int inner, int outer) {
      cp_async_bulk_tensor_2d_evict_first(b_tile + at, &b_map, barrier, inner, outer);
    });
    load_tile<A, TILE_M>(b_tile + B_BYTES, &a_map, barrier, 0, k);
  };
  // A block waits for its first loads above all. So three warps begin side by side, and the one
  // that produces loads some steps before they meet: these need no stage that was read.
  const int used = min(count, stages), ahead = min(used, AT_ONCE);
  if (threadIdx.x == CONSUMERS) {
    for (int stage = 0; stage < stages; ++stage) mbarrier_init(full + 8 * stage, 1);
    fence_mbarrier_init();
    griddepcontrol_wait();
#pragma unroll 1
    for (int i = 0; i < ahead; ++i) load_step(start, i, i);
  } else if (threadIdx.x == 0) {
    for (int stage = 0; stage < stages; ++stage) mbarrier_init(empty + 8 * stage, CONSUMERS / 32);
    if (meets && c_transposed)
      expect_partials<TILE_M>(received, share_of(start * BLOCK_N), rank);
    if (meets && !c_transposed)
      expect_partials<BLOCK_N>(received, share_of(start * BLOCK_N), rank);
    fence_mbarrier_init();
  } else if (threadIdx.x == 32) {
    prefetch_tensormap(&a_map);
    prefetch_l2<Tile, A, B, TILE_M>(&a_map, &b_map, start, first, min(used, L2_PREFETCH));
  }
  zero_rows<Tile::THREADS>(shared + (ring - shared_address(shared)) + B_BYTES, STAGE_BYTES,
                           schedule.persists ? stages : used, schedule.a_rows, TILE_M);
  __syncthreads();
  if (meets) barrier_cluster_arrive_relaxed();

  // Only where K is whole does a block take more than one tile.
  const int step = gridDim.x;
  const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0);
  if (warp == CONSUMERS / 32) {
    if (threadIdx.x == CONSUMERS) {
      uint32_t stage = ahead < stages ? ahead : 0, phase = ahead == stages;
      const int lets_next = count < PDL_STEPS ? count : max(count - PDL_STEPS, ahead);
      int loaded = ahead;
      for (int tile = start; tile < schedule.tiles; tile += step) {
        for (int i = loaded; i < count; ++i) {
          mbarrier_try_wait_parity(empty + 8 * stage, phase ^ 1);
          load_step(tile, i, stage);
          if (++stage == stages) stage = 0, phase ^= 1;
          // The next kernel may take what room there is.
          if (schedule.pdl && i == lets_next) griddepcontrol_launch_dependents();
        }
        loaded = 0;
      }
      griddepcontrol_launch_dependents();
    }
    __syncwarp();
  } else {
    griddepcontrol_wait();
    const int part = warp / 4;  // 64 columns of B each, or 64 rows of A
    const bool arrives = threadIdx.x % 32 == 0;
    const uint64_t b_desc = wgmma_descriptor(ring + part * Tile::B_TO_NEXT);
    const uint64_t a_desc = wgmma_descriptor(ring + B_BYTES + part * Tile::A_TO_NEXT);
    float* sums = reinterpret_cast<float*>(shared + (sums_at - shared_address(shared)));
    uint32_t stage = 0, phase = 0;
    for (int tile = start; tile < schedule.tiles; tile += step) {
      float d[Tile::MMAS][Tile::SUMS];
      for (int i = 0; i < count; ++i) {
        mbarrier_try_wait_parity(full + 8 * stage, phase);
        const uint32_t offset = stage * (STAGE_BYTES >> 4);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < BLOCK_K / MMA_K; ++k)
          multiply<In, A, B, TILE_M, Tile>(d, b_desc + offset + k * DESCRIPTOR_PER_MMA_K<B>,
                                           a_desc + offset + k * DESCRIPTOR_PER_MMA_K<A>,
                                           i > 0 || k > 0);
        wgmma_commit_group();
        // One group stays in flight; the one before has read its stage, which goes back.
        wgmma_wait_group<1>();
        if (arrives && i > 0) mbarrier_arrive(empty + 8 * (stage == 0 ? stages - 1 : stage - 1));
        if (++stage == stages) stage = 0, phase ^= 1;
      }
      wgmma_wait_group<0>();
      if (const Rows& to = schedule.sums; to.data != nullptr) {
        const int pitch = to.row_stride, along_n = c_transposed ? pitch : 1;
        write_tile<Tile>(static_cast<float*>(to.data) + int64_t{rank} * to.rows * pitch +
                             int64_t{tile} * BLOCK_N * along_n,
                         d, part, along_n, c_transposed ? 1 : pitch);
        continue;
      }
      if (arrives) mbarrier_arrive(empty + 8 * (stage == 0 ? stages - 1 : stage - 1));
      bar_sync(1, CONSUMERS);  // all warps are done with what lies where the sums go
      const int step_n = c_transposed ? pitch_of(TILE_M) : 1;
      const int step_m = c_transposed ? 1 : pitch_of(BLOCK_N);
      write_tile<Tile>(sums, d, part, step_n, step_m);
      if (meets) fence_proxy_async();
      bar_sync(1, CONSUMERS);
      const int n = tile * BLOCK_N;
      const Share share = share_of(n);
      if (meets) {
        barrier_cluster_wait();  // every block expects what is sent; all have arrived long since
        if (threadIdx.x == 0) {
          if (c_transposed)
            send_partials<TILE_M>(sums_at, behind, received, share, rank);
          else
            send_partials<BLOCK_N>(sums_at, behind, received, share, rank);
        }
        mbarrier_try_wait_parity(received, 0);
      }
      const float* parts = reinterpret_cast<float*>(shared + (behind - shared_address(shared)));
      if (c_transposed)
        finish_share<Out, TILE_M, CONSUMERS>(schedule.plain, sums, parts, share, rank, c, epilogue,
                                             n, 0, threadIdx.x);
      else
        finish_share<Out, BLOCK_N, CONSUMERS>(schedule.plain, sums, parts, share, rank, c, epilogue,
                                              0, n, threadIdx.x);
    }
  }
  // No block exits while another may still read its sums.
  if (meets) {
    if (warp == CONSUMERS / 32) barrier_cluster_wait();
    barrier_cluster_arrive_relaxed();
    barrier_cluster_wait();
  }
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = asked.c.rows <= asked.c.cols ? asked : transposed(asked);
  const Gemm by_rows = with_rows_of_c(gemm);
  const int M = static_cast<int>(gemm.c.rows), K = static_cast<int>(gemm.a.cols);
  if (M > MOST_M) return cudaErrorInvalidValue;
  CUtensorMap a_map, b_map;
  Major a_major{}, b_major{};
  int sms = 0;
  int error = multiprocessors(&sms);
  const Settings plan = settings_of(gemm, plan_of(asked, asked.c.rows > asked.c.cols), sms);
  int rows = tile_rows(M, plan.block_n);
  if (error == cudaSuccess)
    error = operand_map(gemm.a, false, gemm.in, std::min(M, rows), &a_map, &a_major);
  if (a_major == Major::MN) rows = std::max(rows, PANEL);
  const int width = width_for(a_major, rows, plan.block_n);
  if (error == cudaSuccess)
    error = operand_map(gemm.b, true, gemm.in, width, &b_map, &b_major, 0, panel_of(width));
  const int64_t tiles = ceil_div(gemm.c.cols, width), k_tiles = ceil_div(K, BLOCK_K);
  // No part of K is empty.
  const int splits = static_cast<int>(std::min<int64_t>(plan.splits, k_tiles));
  const int64_t at_once = int64_t{std::max(1u, SM_BYTES / plan.bytes)} * sms;
  const bool persists = splits == 1 && tiles > at_once, c_transposed = column_major(gemm.c);
  const bool adds = splits > MOST_SPLITS, meets = splits > 1 && !adds;
  const uint32_t most = std::min<int64_t>(adds ? k_tiles / splits + 1 : MOST_STAGES, MOST_STAGES);
  Matrix sums{};
  if (error == cudaSuccess && adds)
    error = c_transposed ? lend_sums(gemm, tiles * width, rows, splits, stream, &sums)
                         : lend_sums(gemm, rows, tiles * width, splits, stream, &sums);
  if (error != cudaSuccess) return error;
  error = with_types(gemm, [&](auto in, auto out) {
    if constexpr (BUILT<decltype(in), decltype(out)>)
      return with_tile(a_major, rows, width, [&](auto a, auto tile_m, auto block_n) {
        const auto start = [&](auto b) {
          using Tile = Shape<tile_m, block_n, b>;
          const uint32_t of_block = persists ? Tile::ACCUMULATOR_BYTES : 0;
          const uint32_t behind = meets ? Tile::PARTIAL_BYTES : of_block;
          const uint32_t room = plan.bytes - std::min(plan.bytes, behind + 1024);
          const int stages =
              std::min(std::max(room / Tile::STAGE_BYTES, Tile::LEAST_STAGES), most);
          return launch_clusters(
              skinny<decltype(in), decltype(out), a, b, tile_m, block_n>,
              static_cast<unsigned>(persists ? at_once : meets ? tiles : tiles * splits),
              meets ? splits : 1, dim3(Tile::THREADS), stages * Tile::STAGE_BYTES + behind + 1024,
              stream, a_map, b_map, rows_of(by_rows.c, gemm.out), c_transposed,
              epilogue_of<float>(by_rows),
              SkinnySchedule{K, splits, stages, loaded_rows(a_major, M, rows),
                             static_cast<int>(tiles), persists,
                             !persists && tiles * splits <= sms, is_plain(gemm),
                             Divisor::of(splits), rows_of(sums, DType::f32)});
        };
        return b_major == Major::K ? start(std::integral_constant<Major, Major::K>{})
                                   : start(std::integral_constant<Major, Major::MN>{});
      });
    return int{cudaErrorInvalidValue};
  });
  if (error != cudaSuccess || !adds) return error;
  const int64_t stride = sums.rows * sums.cols;
  return launch_add_partials(by_rows, rows_of(sums, DType::f32), stride, splits, stream);
}
