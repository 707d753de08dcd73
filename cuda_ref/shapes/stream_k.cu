// C[M, N] = A[M, K] B[K, N] with M up to 128 (or N, by C^T = B^T A^T): every SM the same work.
//
// ADDS           skinny deals out tiles, and 96 or 448 of them do not divide by 132 SMs. Here the
//                steps along K of all tiles are one list, cut into as many equal ranges as there
//                are SMs. A tile that is cut belongs to the block with its first step: it adds
//                what the others have left in a workspace, in the order of K, so that no bit
//                depends on timing. A block begins with the end of a tile that is another's, so
//                that this is there long before it is wanted.
//                Whole tiles come last, as many as there are for each SM.
// STILL MISSING  a range that lies inside of one tile ends when its sums are wanted; blocks at
//                different steps do not share what they read of A and of the rows of B.
//
// grid       one block to an SM, the last range first: a block waits only for those before it
// block      a producer warp and BLOCK_N / 64 consumer warpgroups step through K by BLOCK_K, over a
//            ring of up to MOST_STAGES stages, each BLOCK_N x 128 bytes of B and TILE_M x 128 of A
// warpgroup  wgmma 64 x TILE_M x 16: C^T; TILE_M is 16, 64 or 128; at most 64 accumulators a thread
#include <atomic>

#include "tile/order.cuh"
#include "stream_k/partials.cuh"
#include "skinny/tile.cuh"

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

constexpr int MOST_M = 128;
constexpr int MOST_STAGES = 16;
constexpr uint32_t BLOCK_BYTES = 226 * 1024;  // for a ring and the sums behind it
constexpr int L2_PREFETCH = 4;  // stages, before the kernel before this one has finished
constexpr int PDL_STEPS = 8;  // stages before its last at which a block lets the next kernel begin
constexpr int LEAST_STEPS = 4;  // of a range
constexpr int MOST_PARTIALS = 8;   // of a tile, on average

// A run of steps along K of one tile.
struct Segment {
  int tile, begin, count;
};

// Step s of the list is step s % k_tiles along K of tile s / k_tiles. Each block has a range of the
// `ends` first tiles, then `waves` whole ones, at the same step as the other blocks: so they read
// the same lines of A, and neighbours in the rows of B, at the same time. What a block still waits
// for after its range, the loads of its next tile hide.
struct Schedule {
  int k_tiles, stages;
  int a_rows;  // of A that arrive for a step
  int ends, waves;
  int each, longer;  // steps of a range; the first `longer` have one more
  bool plain;        // nothing follows the product
  Partials parts;

  __device__ int first(int range) const { return range * each + min(range, longer); }
  __device__ int steps(int range) const {
    return first(range + 1) - first(range) + waves * k_tiles;
  }
  // What the block with this range does from its step `done` on.
  __device__ Segment segment(int range, int done) const {
    const int left = first(range + 1) - first(range) - done;
    if (left > 0) {
      const int step = first(range) + done, begin = step % k_tiles;
      return {step / k_tiles, begin, min(k_tiles - begin, left)};
    }
    return {ends + -left / k_tiles * static_cast<int>(gridDim.x) + range, 0, k_tiles};
  }
};

// `c` has rows of neighbours: those of C, or with c_transposed its columns.
template <typename In, typename Out, Major A, Major B, int TILE_M, int BLOCK_N>
__global__ void __launch_bounds__(Shape<TILE_M, BLOCK_N, B>::THREADS, 1)
    stream_k(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
             Rows c, bool c_transposed, Epilogue<float> epilogue, Schedule schedule) {
  using Tile = Shape<TILE_M, BLOCK_N, B>;
  constexpr uint32_t STAGE_BYTES = Tile::STAGE_BYTES, B_BYTES = Tile::B_BYTES;
  constexpr int CONSUMERS = Tile::CONSUMERS;
  extern __shared__ uint8_t shared[];
  __shared__ uint64_t barriers[2 * MOST_STAGES];
  const uint32_t ring = (shared_address(shared) + 1023) / 1024 * 1024;
  const uint32_t full = shared_address(barriers), empty = full + 8 * MOST_STAGES;
  const int stages = schedule.stages, k_tiles = schedule.k_tiles;
  const int range = gridDim.x - 1 - blockIdx.x, steps = schedule.steps(range);

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < stages; ++stage) {
      mbarrier_init(full + 8 * stage, 1);
      mbarrier_init(empty + 8 * stage, CONSUMERS / 32);
    }
    fence_mbarrier_init();
  }
  zero_rows<Tile::THREADS>(shared + (ring - shared_address(shared)) + B_BYTES, STAGE_BYTES,
                           min(steps, stages), schedule.a_rows, TILE_M);
  __syncthreads();

  const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0);
  if (warp == CONSUMERS / 32) {
    if (threadIdx.x == CONSUMERS) {
      prefetch_tensormap(&a_map);
      const Segment start = schedule.segment(range, 0);
      for (int i = 0; i < min(start.count, L2_PREFETCH); ++i)
        each_box_of_b<Tile, B>(start.tile * BLOCK_N, (start.begin + i) * BLOCK_K,
                               [&](uint32_t, int inner, int outer) {
                                 cp_async_bulk_prefetch_tensor_2d(&b_map, inner, outer);
                               });
      griddepcontrol_wait();
      uint32_t stage = 0, phase = 0;
      for (int done = 0; done < steps;) {
        const Segment segment = schedule.segment(range, done);
        for (int i = 0; i < segment.count; ++i, ++done) {
          const int k = (segment.begin + i) * BLOCK_K;
          mbarrier_try_wait_parity(empty + 8 * stage, phase ^ 1);
          const uint32_t barrier = full + 8 * stage, b_tile = ring + stage * STAGE_BYTES;
          mbarrier_arrive_expect_tx(barrier, (BLOCK_N + schedule.a_rows) * 128);
          each_box_of_b<Tile, B>(segment.tile * BLOCK_N, k, [&](uint32_t at, int inner, int outer) {
            cp_async_bulk_tensor_2d_evict_first(b_tile + at, &b_map, barrier, inner, outer);
          });
          load_tile<A, TILE_M>(b_tile + B_BYTES, &a_map, barrier, 0, k);
          if (++stage == stages) stage = 0, phase ^= 1;
          if (done == steps - PDL_STEPS) griddepcontrol_launch_dependents();
        }
      }
      griddepcontrol_launch_dependents();
    }
  } else {
    griddepcontrol_wait();
    const int part = warp / 4;
    const bool arrives = threadIdx.x % 32 == 0;
    const uint64_t b_desc = wgmma_descriptor(ring + part * BYTES_PER_64_MN);
    const uint64_t a_desc = wgmma_descriptor(ring + B_BYTES);
    float* sums = reinterpret_cast<float*>(
        shared + (ring + stages * STAGE_BYTES - shared_address(shared)));
    uint32_t stage = 0, phase = 0;
    for (int done = 0; done < steps;) {
      const Segment segment = schedule.segment(range, done);
      done += segment.count;
      float d[1][TILE_M / 2];
      for (int i = 0; i < segment.count; ++i) {
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
      if (arrives) mbarrier_arrive(empty + 8 * (stage == 0 ? stages - 1 : stage - 1));
      if (segment.begin > 0) {
        store_partial<CONSUMERS>(schedule.parts, range, d[0]);
        continue;
      }
      for (int summed = segment.count, next = range + 1; summed < k_tiles; ++next) {
        add_partial<CONSUMERS>(schedule.parts, next, d[0]);
        summed += schedule.first(next + 1) - schedule.first(next);
      }
      bar_sync(1, CONSUMERS);  // the tile before has been read
      write_tile<Tile>(sums, d, part, c_transposed ? pitch_of(TILE_M) : 1,
                       c_transposed ? 1 : pitch_of(BLOCK_N));
      bar_sync(1, CONSUMERS);
      const int n = segment.tile * BLOCK_N;
      const Share all{c_transposed ? min(c.rows - n, BLOCK_N) : c.rows, 1};
      if (c_transposed)
        finish_share<Out, TILE_M, CONSUMERS>(schedule.plain, sums, sums, all, 0, c, epilogue, n, 0,
                                             threadIdx.x);
      else
        finish_share<Out, BLOCK_N, CONSUMERS>(schedule.plain, sums, sums, all, 0, c, epilogue, 0, n,
                                              threadIdx.x);
    }
  }
}

// Where blocks cannot wait for each other, each has a tile.
int blocks_of(int64_t tiles, int64_t steps, int sms) {
  if (!BLOCKS_RUN_AT_ONCE) return static_cast<int>(tiles);
  return static_cast<int>(
      std::max<int64_t>(1, std::min({steps / LEAST_STEPS, tiles * MOST_PARTIALS, int64_t{sms}})));
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = asked.c.rows <= asked.c.cols ? asked : transposed(asked);
  const Gemm by_rows = with_rows_of_c(gemm);
  const int M = static_cast<int>(gemm.c.rows);
  if (M > MOST_M) return cudaErrorInvalidValue;
  CUtensorMap a_map, b_map;
  Major a_major, b_major;
  int sms = 0;
  int error = multiprocessors(&sms);
  const Plan plan = plan_of(asked, asked.c.rows > asked.c.cols);
  const int planned_width = plan.block_n > 0 ? plan.block_n : 64;
  const int rows = tile_rows(M, planned_width);
  if (error == cudaSuccess)
    error = operand_map(gemm.a, false, gemm.in, std::min(M, rows), &a_map, &a_major);
  const int width = width_for(a_major, rows, planned_width);
  if (error == cudaSuccess) error = operand_map(gemm.b, true, gemm.in, width, &b_map, &b_major);
  if (error != cudaSuccess) return error;

  const int64_t tiles = ceil_div(gemm.c.cols, width), k_tiles = ceil_div(gemm.a.cols, BLOCK_K);
  const int64_t steps = tiles * k_tiles;
  if (steps > INT32_MAX / 2) return cudaErrorInvalidConfiguration;
  const int blocks = blocks_of(tiles, steps, sms);
  int waves = static_cast<int>(tiles / blocks), ends = static_cast<int>(tiles % blocks);
  // Some few tiles would have many parts each, to be added one after the other.
  if (ends > 0 && ends * MOST_PARTIALS / 2 < blocks && waves > 0) --waves, ends += blocks;
  const int in_ranges = ends * static_cast<int>(k_tiles);
  Schedule schedule{static_cast<int>(k_tiles), 0, loaded_rows(a_major, M, rows), ends, waves,
                    in_ranges / blocks, in_ranges % blocks, is_plain(gemm), {}};
  const size_t partial_bytes =
      size_t{4} * (a_major == Major::K ? rows : std::max(rows, 64)) * width;
  if (ends > 0) {
    if (gemm.scratch.allocate == nullptr) return cudaErrorNotSupported;
    void* workspace = gemm.scratch.allocate(blocks * (partial_bytes + 8), stream);
    if (workspace == nullptr) return cudaErrorMemoryAllocation;
    schedule.parts = partials_in(workspace, blocks, partial_bytes);
  }
  const auto launched = [&](auto in, auto out) {
    return with_swap_ab_tile(a_major, rows, width, [&](auto a, auto tile_m, auto block_n) {
      const auto start = [&](auto b) {
        using Tile = Shape<tile_m, block_n, b>;
        schedule.stages = std::min<uint32_t>(
            (BLOCK_BYTES - Tile::ACCUMULATOR_BYTES - 1024) / Tile::STAGE_BYTES, MOST_STAGES);
        return launch_clusters(stream_k<decltype(in), decltype(out), a, b, tile_m, block_n>,
                               static_cast<unsigned>(blocks), 1, dim3(Tile::THREADS),
                               schedule.stages * Tile::STAGE_BYTES + Tile::ACCUMULATOR_BYTES + 1024,
                               stream, a_map, b_map, rows_of(by_rows.c, gemm.out),
                               column_major(gemm.c), epilogue_of<float>(by_rows), schedule);
      };
      return b_major == Major::K ? start(std::integral_constant<Major, Major::K>{})
                                 : start(std::integral_constant<Major, Major::MN>{});
    });
  };
  return with_types(gemm, [&](auto in, auto out) {
    if constexpr (BUILT<decltype(in), decltype(out)>) return launched(in, out);
    return int{cudaErrorInvalidValue};
  });
}
