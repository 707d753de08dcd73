// C[M, N] = epilogue(alpha scale_a scale_b A[M, K] B[K, N] + beta C_in + bias), or a batch of them,
// for int8, uint8, the 8-bit floats, and float32 as tf32 or at its own accuracy (tf32x3).
//
// ADDS           the other types of the tensor cores, on the schedule of wgmma_persistent. A row of
//                a panel is 128 bytes of K whatever the type, and both operands must lie K-major:
//                one that does not, or whose rows TMA cannot read, is copied first (pack.cuh).
//                tf32: TMA rounds to nearest on the way in. PROMOTE: the tensor cores truncate each
//                partial sum (of 8-bit floats to some 14 bits), so every 128 bytes of K are summed
//                from zero and added in float32 registers. tf32x3: three warps that the producer
//                leaves idle split each stage x = hi + lo, and hi hi + hi lo + lo hi are multiplied
//                (lo lo is below 2^-22); hi is x itself, whose lower bits the tensor cores ignore.
// STILL MISSING  a second tile where C has few of these.
//
// grid       as few clusters of 1 or 2 blocks along M as finish in the same number of rounds
// block      one producer and CONSUMERS consumer warpgroups; BLOCK_M x BLOCK_N of C, BLOCK_N 256,
//            or PROMOTE_BLOCK_N where a second set of accumulators holds the promoted sums
// warpgroup  64 x BLOCK_N of C: wgmma 64 x BLOCK_N x 32 bytes; stored in chunks of 64 rows x 128 bytes
#include "order.cuh"
#include "pack.cuh"
#include "wgmma_epilogue.cuh"
#include "wgmma_kmajor.cuh"

// What a build is for: the build system compiles one case at a time. By default it is all cases.
#ifdef TCGEMM_IN
#define TCGEMM_BUILT(IN, COMPUTE) (int(IN) == TCGEMM_IN && int(COMPUTE) == TCGEMM_COMPUTE)
#else
#define TCGEMM_BUILT(IN, COMPUTE) true
#endif

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

constexpr int BLOCK_M = 128;
constexpr int BLOCK_N = 256;
constexpr int PROMOTE_BLOCK_N = 128;
constexpr int BLOCK_K = 128;  // bytes
constexpr int GROUP_M = 16;
constexpr int CONSUMERS = 2;
constexpr int THREADS = 128 * (1 + CONSUMERS);
constexpr int SPLITTERS = 3;  // warps
constexpr int CHUNK_BUFFERS = 2;
constexpr uint32_t RING_BYTES = 192 * 1024;
constexpr uint32_t SHARED_BYTES = RING_BYTES + CONSUMERS * CHUNK_BUFFERS * CHUNK_BYTES + 1024;
static_assert(SHARED_BYTES <= 232448 - 256, "an SM gives a block 227 KB, barriers included");

// One way to multiply. PRODUCTS: wgmma for each 32 bytes of K, 3 for tf32x3.
template <Mma MMA_, int PRODUCTS_, bool PROMOTE_>
struct Mode {
  static constexpr Mma MMA = MMA_;
  static constexpr int PRODUCTS = PRODUCTS_;
  static constexpr bool PROMOTE = PROMOTE_;
  static constexpr bool INTEGERS = MMA == Mma::s8 || MMA == Mma::u8;
  using Acc = std::conditional_t<INTEGERS, int32_t, float>;
  static constexpr int ITEM = MMA == Mma::tf32 ? 4 : 1;  // bytes
  static constexpr int N = PROMOTE ? PROMOTE_BLOCK_N : BLOCK_N;
  static constexpr uint32_t A_BYTES = BLOCK_M * BLOCK_K, LOADED_BYTES = A_BYTES + N * BLOCK_K;
  static constexpr uint32_t STAGE_BYTES = LOADED_BYTES * (PRODUCTS == 3 ? 2 : 1);
  static constexpr uint32_t NUM_STAGES = RING_BYTES / STAGE_BYTES;
  static constexpr int PRODUCER_REGISTERS = PRODUCTS == 3 ? 72 : 40;
  static constexpr int CONSUMER_REGISTERS = PRODUCTS == 3 ? 216 : 232;
};

struct Schedule {
  int M, N, k_tiles, cluster, block_n;
  int batch, a_step, b_step;  // a_step, b_step: 0 where the batch shares the operand, else 1

  __device__ int rows() const { return (M - 1) / (BLOCK_M * cluster) + 1; }
  __device__ int cols() const { return (N - 1) / block_n + 1; }

  // The corner of the tile that block `rank` of a cluster computes of the cluster's tile `index`,
  // and its matrix of the batch.
  __device__ void locate(int index, int rank, int* m, int* n, int* z) const {
    const int of_one = rows() * cols();
    *z = index / of_one;
    const Tile tile = cluster == 1
                          ? grouped_tile<GROUP_M>(index - *z * of_one, rows(), cols())
                          : grouped_tile<GROUP_M / 2>(index - *z * of_one, rows(), cols());
    *m = (tile.m * cluster + rank) * BLOCK_M;
    *n = tile.n * block_n;
  }
};

// What is left of float32 numbers after the 11 leading bits of each, rounded to nearest as cvt.rna
// does once the hardware drops the lower 13 bits. Nothing is left of Inf and NaN.
__device__ __forceinline__ uint32_t low_part(uint32_t x) {
  const float lo = __uint_as_float(x) - __uint_as_float(x & 0xffffe000);
  return (x & 0x7f800000) == 0x7f800000 ? 0 : __float_as_uint(lo) + 0x1000;
}

template <typename Mode, typename Out>
__global__ void __launch_bounds__(THREADS, 1)
    wgmma_types(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
                const __grid_constant__ CUtensorMap c_map, PlainOutput plain, Schedule schedule,
                const __grid_constant__ Epilogue<typename Mode::Acc> epilogue) {
  using Acc = typename Mode::Acc;
  constexpr uint32_t NUM_STAGES = Mode::NUM_STAGES, STAGE_BYTES = Mode::STAGE_BYTES;
  constexpr bool SPLIT = Mode::PRODUCTS == 3;
  extern __shared__ uint8_t shared[];
  __shared__ uint64_t barriers[3 * NUM_STAGES];
  const uint32_t ring = (shared_address(shared) + 1023) / 1024 * 1024;
  const uint32_t full = shared_address(barriers), empty = full + 8 * NUM_STAGES;
  const uint32_t split = empty + 8 * NUM_STAGES;

  const int cluster = schedule.cluster, rank = cluster > 1 ? cluster_ctarank() : 0;
  const int first = blockIdx.x / cluster, step = gridDim.x / cluster;
  const int tiles = schedule.rows() * schedule.cols() * schedule.batch;
  const int k_tiles = schedule.k_tiles;

  if (threadIdx.x == 0) {
    for (uint32_t stage = 0; stage < NUM_STAGES; ++stage) {
      mbarrier_init(full + 8 * stage, 1);
      mbarrier_init(empty + 8 * stage, 4 * CONSUMERS * cluster);
      mbarrier_init(split + 8 * stage, SPLITTERS);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  if (cluster > 1) {
    barrier_cluster_arrive();
    barrier_cluster_wait();
  }
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();

  const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  int m, n, z;
  uint32_t stage = 0, phase = 0;
  const auto advance = [&] {
    if (++stage == NUM_STAGES) stage = 0, phase ^= 1;
  };
  if (warp < 4) {
    setmaxnreg_dec<Mode::PRODUCER_REGISTERS>();
    if (threadIdx.x == 0) {
      prefetch_tensormap(&a_map);
      prefetch_tensormap(&b_map);
      for (int index = first; index < tiles; index += step) {
        schedule.locate(index, rank, &m, &n, &z);
        for (int k_tile = 0; k_tile < k_tiles; ++k_tile, advance()) {
          mbarrier_try_wait_parity(empty + 8 * stage, phase ^ 1);
          const uint32_t barrier = full + 8 * stage, tile = ring + stage * STAGE_BYTES;
          const int k = k_tile * (BLOCK_K / Mode::ITEM);
          mbarrier_arrive_expect_tx(barrier, Mode::LOADED_BYTES);
          load_tile<Major::K, BLOCK_M, true>(tile, &a_map, barrier, m, k, z * schedule.a_step);
          load_tile_multicast<Major::K, Mode::N, true, Mode::N / 2>(
              tile + Mode::A_BYTES, &b_map, barrier, n, k, rank, cluster, z * schedule.b_step);
        }
      }
    } else if (SPLIT && warp > 0) {
      constexpr uint32_t UNITS = Mode::LOADED_BYTES / 16, BATCH = 4;
      for (int index = first; index < tiles; index += step) {
        for (int k_tile = 0; k_tile < k_tiles; ++k_tile, advance()) {
          mbarrier_try_wait_parity(full + 8 * stage, phase);
          const uint32_t tile = ring + stage * STAGE_BYTES;
          for (uint32_t unit = threadIdx.x - 32; unit < UNITS; unit += BATCH * 32 * SPLITTERS) {
            uint4 x[BATCH];
#pragma unroll
            for (uint32_t i = 0; i < BATCH; ++i)
              if (unit + i * 32 * SPLITTERS < UNITS)
                x[i] = ld_shared_v4(tile + (unit + i * 32 * SPLITTERS) * 16);
#pragma unroll
            for (uint32_t i = 0; i < BATCH; ++i)
              if (unit + i * 32 * SPLITTERS < UNITS)
                st_shared_v4(tile + Mode::LOADED_BYTES + (unit + i * 32 * SPLITTERS) * 16,
                             make_uint4(low_part(x[i].x), low_part(x[i].y), low_part(x[i].z),
                                        low_part(x[i].w)));
          }
          fence_proxy_async();
          __syncwarp();
          if (lane == 0) mbarrier_arrive(split + 8 * stage);
        }
      }
    }
    __syncwarp();
  } else {
    setmaxnreg_inc<Mode::CONSUMER_REGISTERS>();
    const int consumer = warp / 4 - 1;
    const bool stores = threadIdx.x % 128 == 0;  // the thread that owns the TMA stores
    const uint64_t a_desc = wgmma_descriptor(ring + consumer * BYTES_PER_64_MN);
    const uint64_t b_desc = wgmma_descriptor(ring + Mode::A_BYTES);
    const uint32_t chunks = ring + RING_BYTES + consumer * CHUNK_BUFFERS * CHUNK_BYTES;
    const auto release = [&](uint32_t stage) {
      if (lane < cluster) mbarrier_arrive_cluster(empty + 8 * stage, lane);
    };
    Acc d[Mode::N / 2], sums[Mode::PROMOTE ? Mode::N / 2 : 1];
    for (int index = first; index < tiles; index += step) {
      schedule.locate(index, rank, &m, &n, &z);
      m += consumer * 64;
      for (int k_tile = 0; k_tile < k_tiles; ++k_tile, advance()) {
        mbarrier_try_wait_parity(full + 8 * stage, phase);
        if constexpr (SPLIT) mbarrier_try_wait_parity(split + 8 * stage, phase);
        constexpr uint64_t PER_MMA_K = DESCRIPTOR_PER_MMA_K<Major::K>;
        constexpr uint64_t LOW = Mode::LOADED_BYTES >> 4;
        const uint64_t a = a_desc + stage * (STAGE_BYTES >> 4);
        const uint64_t b = b_desc + stage * (STAGE_BYTES >> 4);
        const bool more = !Mode::PROMOTE && k_tile > 0;
        wgmma_fence();
        if constexpr (SPLIT) {  // the small products first: fewer large sums to truncate
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            wgmma_kmajor<Mode::MMA>(d, a + LOW + k * PER_MMA_K, b + k * PER_MMA_K, k > 0);
            wgmma_kmajor<Mode::MMA>(d, a + k * PER_MMA_K, b + LOW + k * PER_MMA_K, true);
          }
        }
#pragma unroll
        for (int k = 0; k < 4; ++k)
          wgmma_kmajor<Mode::MMA>(d, a + k * PER_MMA_K, b + k * PER_MMA_K, SPLIT || more || k > 0);
        wgmma_commit_group();
        if constexpr (Mode::PROMOTE) {
          wgmma_wait_group<0>();
          release(stage);
#pragma unroll
          for (int i = 0; i < Mode::N / 2; ++i) sums[i] = k_tile > 0 ? sums[i] + d[i] : d[i];
        } else {
          wgmma_wait_group<1>();
          if (k_tile > 0) release(stage == 0 ? NUM_STAGES - 1 : stage - 1);
        }
      }
      ChunkOfCIn<Out> c_in;
      c_in.load(epilogue, m, n, schedule.M, schedule.N, z);
      if constexpr (!Mode::PROMOTE) {
        wgmma_wait_group<0>();
        release(stage == 0 ? NUM_STAGES - 1 : stage - 1);
      }
      const auto store = [&](auto& values) {
        finish_chunks<Out>(epilogue, c_in, values, m, n, schedule.M, schedule.N, z);
        if (plain.data != nullptr) {
          store_accumulators<Out>(plain.at(z, sizeof(Out)), values, m, n, schedule.M, schedule.N);
          return;
        }
#pragma unroll
        for (int i = 0; i < Mode::N / CHUNK_N<Out>; ++i) {
          const uint32_t chunk = chunks + i % CHUNK_BUFFERS * CHUNK_BYTES;
          if (stores) cp_async_bulk_wait_group_read<CHUNK_BUFFERS - 1>();
          bar_sync(1 + consumer, 128);
          write_chunk<Out>(chunk, values, i * CHUNK_N<Out>);
          fence_proxy_async();
          bar_sync(1 + consumer, 128);
          if (stores) {
            tma_store_3d(&c_map, chunk, n + i * CHUNK_N<Out>, m, z);
            cp_async_bulk_commit_group();
          }
        }
      };
      if constexpr (Mode::PROMOTE) store(sums);
      else store(d);
    }
    if (stores) cp_async_bulk_wait_group_read<0>();
  }
  if (cluster > 1) {
    barrier_cluster_arrive();
    barrier_cluster_wait();
  }
}

// The tensor map of an operand, of a packed copy where TMA cannot read it K-major where it is.
template <typename Mode>
int kmajor_map(Matrix matrix, bool rows_are_k, const Gemm& gemm, uint32_t box_rows,
               cudaStream_t stream, CUtensorMap* map) {
  constexpr bool ROUNDS = Mode::MMA == Mma::tf32 && Mode::PRODUCTS == 1;
  using Word = std::conditional_t<Mode::ITEM == 4, uint32_t, uint8_t>;
  const auto encode = [&] {
    return tensor_map(matrix, rows_are_k, gemm.in, BLOCK_K / Mode::ITEM, box_rows, map, gemm.batch,
                      ROUNDS);
  };
  int error = encode();
  if (error != cudaErrorInvalidValue) return error;
  error = pack_operand<Word>(matrix, rows_are_k, gemm.batch, gemm.scratch, stream);
  return error == cudaSuccess ? encode() : error;
}

template <typename Mode, typename Out>
int launch_mode(const Gemm& gemm, cudaStream_t stream) {
  CUtensorMap a_map, b_map, c_map{};
  int sms = 0;
  int error = kmajor_map<Mode>(gemm.a, false, gemm, BLOCK_M, stream, &a_map);
  if (error == cudaSuccess)
    error = kmajor_map<Mode>(gemm.b, true, gemm, Mode::N / 2, stream, &b_map);
  if (error == cudaSuccess) error = multiprocessors(&sms);
  if (error != cudaSuccess) return error;
  const PlainOutput plain = output_map(gemm.c, gemm.out, CHUNK_ROWS, &c_map, gemm.batch);

  const int64_t tiles_m = ceil_div(gemm.c.rows, BLOCK_M), tiles_n = ceil_div(gemm.c.cols, Mode::N);
  if (tiles_m * tiles_n > INT32_MAX / 2 / gemm.batch) return cudaErrorInvalidConfiguration;
  const int cluster = MAX_CLUSTER > 1 && tiles_m * tiles_n * gemm.batch > 4 * sms &&
                              (tiles_m % 2 == 0 || tiles_m > 16)
                          ? 2
                          : 1;
  const Schedule schedule{static_cast<int>(gemm.c.rows),
                          static_cast<int>(gemm.c.cols),
                          static_cast<int>(ceil_div(gemm.a.cols, BLOCK_K / Mode::ITEM)),
                          cluster,
                          Mode::N,
                          static_cast<int>(gemm.batch),
                          gemm.a.batch_stride != 0,
                          gemm.b.batch_stride != 0};
  const int64_t tiles = ceil_div(tiles_m, cluster) * tiles_n * gemm.batch;
  const int64_t rounds = ceil_div(tiles, sms / cluster);
  return launch_clusters(wgmma_types<Mode, Out>, static_cast<unsigned>(ceil_div(tiles, rounds)),
                         cluster, dim3(THREADS), SHARED_BYTES, stream, a_map, b_map, c_map, plain,
                         schedule, epilogue_of<typename Mode::Acc>(gemm));
}

// The case of IN and COMPUTE, where this build has it.
template <DType IN, Compute COMPUTE, typename Mode>
int launch_case(const Gemm& gemm, cudaStream_t stream) {
  if constexpr (TCGEMM_BUILT(IN, COMPUTE)) {
    if constexpr (Mode::INTEGERS) return launch_mode<Mode, int32_t>(gemm, stream);
    if constexpr (Mode::ITEM == 1 && !Mode::INTEGERS) {
      if (gemm.out == DType::f16) return launch_mode<Mode, __half>(gemm, stream);
      if (gemm.out == DType::bf16) return launch_mode<Mode, __nv_bfloat16>(gemm, stream);
    }
    if constexpr (!Mode::INTEGERS) return launch_mode<Mode, float>(gemm, stream);
  }
  return cudaErrorNotSupported;
}

// The 8-bit floats, promoted or not.
template <DType IN, Mma MMA>
int launch_floats(const Gemm& gemm, cudaStream_t stream) {
  return gemm.compute == Compute::fast
             ? launch_case<IN, Compute::fast, Mode<MMA, 1, false>>(gemm, stream)
             : launch_case<IN, Compute::f32, Mode<MMA, 1, true>>(gemm, stream);
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = with_rows_of_c(asked);
  switch (gemm.in) {
    case DType::s8:
      return launch_case<DType::s8, Compute::s32, Mode<Mma::s8, 1, false>>(gemm, stream);
    case DType::u8:
      return launch_case<DType::u8, Compute::s32, Mode<Mma::u8, 1, false>>(gemm, stream);
    case DType::e4m3: return launch_floats<DType::e4m3, Mma::e4m3>(gemm, stream);
    case DType::e5m2: return launch_floats<DType::e5m2, Mma::e5m2>(gemm, stream);
    case DType::f32:
      return gemm.compute == Compute::tf32
                 ? launch_case<DType::f32, Compute::tf32, Mode<Mma::tf32, 1, false>>(gemm, stream)
                 : launch_case<DType::f32, Compute::tf32x3, Mode<Mma::tf32, 3, true>>(gemm, stream);
    default: return cudaErrorNotSupported;
  }
}
