// The TMA-store epilogue of wgmma_persistent and one_wave: C = activation(alpha * accumulators +
// beta * C_in + bias), in chunks of 64 rows x 128 bytes, through shared memory and by TMA.
//
// C_in comes by TMA, while the tile is still multiplied, into the buffers from which C is stored; a
// thread reads its words where it writes the result. A C_in that TMA cannot reach is brought there by
// the warpgroup's threads. The bias is read once for each tile, under the multiplies.
//
// In the place of C_in may be Z, the pre-activation. Where it is read, C = alpha * accumulators *
// activation'(Z), and Z has C_in's way. Where it is written, it leaves as C does: each chunk of it
// through one buffer, and the same chunk of C through the next.
//
// A plain C whose rows split sectors of the L2 may leave `in_rows`: each warp stores its own 16 rows,
// as wide as the chunks in its buffers, and waits for nobody. Both ends of such a run are parts of
// sectors, two of 9 where it is 256 bytes long; of a chunk's 128 bytes, as TMA stores them, two of 5.
// A plain C of 16-bit elements in odd rows, which TMA cannot store, leaves so too: in aligned vectors
// of 16 bytes, which each row crosses at a place of its own.
#pragma once

#include "sm90/epilogue_fused.cuh"
#include "sm90/odd_rows.cuh"

namespace tcgemm::sm90 {

// C, and who stores it: TMA where `data` is null, else the threads.
struct Output : PlainOutput {
  bool in_rows;  // of a C that TMA could store as well: in units of 16 bytes, see store_in_rows
  bool odd;      // of 16 bits, in rows that TMA cannot store: see store_in_odd_rows
  bool overlap;  // tiles share UNIT_OVERLAP columns, so that a unit of 16 bytes is all of some tile
};
constexpr int UNIT_OVERLAP = UnalignedVector::ELEMENTS;

// Whether rows of C begin or end within a sector of the L2.
inline bool splits_sectors(const Matrix& c, DType type) {
  constexpr uint64_t SECTOR = 32;
  return (reinterpret_cast<uint64_t>(c.data) | c.row_stride * bytes_of(type)) % SECTOR != 0;
}

// C's map of chunks, as output_map makes it, and who stores: threads in rows where that is worth it
// (`in_rows`) and rows split sectors. A chunk has `rows` rows and at most `columns` columns.
inline Output output_of(bool in_rows, const Matrix& c, DType type, CUtensorMap* map,
                        int64_t batch = 0, int columns = 128, int rows = CHUNK_ROWS) {
  const PlainOutput made = output_map(c, type, rows, map, batch, columns);
  in_rows = in_rows && made.data == nullptr && splits_sectors(c, type);
  const bool odd = made.data != nullptr && c.col_stride == 1 && bytes_of(type) == 2;
  return {in_rows ? plain_output(c, type) : made, in_rows, odd, false};
}

// A warpgroup's part of a tile on its way to C, MMAS times 64 x BLOCK_N. The last chunk of an uneven
// row begins where it ends with the tile, and stores some columns again. IN_ROWS: C may leave in rows.
template <typename Out, typename Extra, int MMAS, int BLOCK_N, int MOST_BUFFERS,
          bool IN_ROWS = false>
struct TmaEpilogue {
  static constexpr bool FUSED = std::is_same_v<Extra, Fused>;
  static constexpr int WIDTH = std::min(CHUNK_N<Out>, BLOCK_N);  // columns of a chunk
  static constexpr int IN_A_ROW = (BLOCK_N - 1) / WIDTH + 1;
  static constexpr int CHUNKS = MMAS * IN_A_ROW;
  static constexpr int COUNT = WIDTH / 2;  // of a thread's accumulators in a chunk
  static constexpr int BUFFERS = CHUNKS % MOST_BUFFERS == 0 ? MOST_BUFFERS : 1;
  // Where every chunk has its buffer, all are stored at once, behind a single barrier.
  static constexpr int TOGETHER = BUFFERS == CHUNKS ? CHUNKS : 1;
  static constexpr int BEHIND = BUFFERS > 1;  // chunks whose store may still read its buffer
  // Columns whose bias a thread has room for, 32 registers.
  static constexpr int BIAS_N = BLOCK_N * sizeof(Out) > 512 ? 128 : BLOCK_N;
  static_assert(!FUSED || BLOCK_N % WIDTH == 0 && BLOCK_N % BIAS_N == 0, "C_in is added once");
  static constexpr bool WRITES = FUSED && FUSES & WRITES_Z, READS = FUSED && FUSES & READS_Z;

  const Extra& fused;
  uint8_t* buffers;   // shared memory: BUFFERS x CHUNK_BYTES
  uint32_t barriers;  // one for each buffer: its chunk of C_in has come
  uint32_t group;     // the barrier of the warpgroup
  bool elected;         // the thread that owns the stores, and the loads into the same buffers
  uint32_t phase = 0;
  int m = 0, n = 0, z = 0;  // the corner in C
  PairOf<Out> columns[BIAS_N / 8];  // the bias of a thread's columns
  float rows[MMAS][2];              // or of its rows

  __device__ uint32_t buffer(int chunk) const {
    return shared_address(buffers) + chunk % BUFFERS * CHUNK_BYTES;
  }
  __device__ int row_of(int chunk) const { return m + chunk / IN_A_ROW * CHUNK_ROWS; }
  __device__ static constexpr int first_of(int chunk) {
    return chunk % IN_A_ROW * WIDTH < BLOCK_N - WIDTH ? chunk % IN_A_ROW * WIDTH : BLOCK_N - WIDTH;
  }
  __device__ int column_of(int chunk) const { return n + first_of(chunk); }

  __device__ void load_c_in(int chunk) const {
    const uint32_t barrier = barriers + chunk % BUFFERS * 8;
    mbarrier_arrive_expect_tx(barrier, CHUNK_BYTES);
    if constexpr (Extra::BATCHED)
      cp_async_bulk_tensor_3d(buffer(chunk), &fused.c_in_map, barrier, column_of(chunk),
                              row_of(chunk), z * fused.c_in_step);
    else
      cp_async_bulk_tensor_2d(buffer(chunk), &fused.c_in_map, barrier, column_of(chunk),
                              row_of(chunk));
  }

  // The corner of tile `index` of the schedule, and `rows` below it.
  template <typename Schedule>
  __device__ __forceinline__ void place(const Schedule& schedule, int index, int rank, int rows) {
    schedule.template locate<Extra::BATCHED>(index, rank, &m, &n, &z);
    m += rows;
  }

  // Some steps into the mainloop, when the tile before has left the buffers.
  __device__ __forceinline__ void begin(int M, int N) {
    if (elected && !WRITES && fused.c_in_by_tma) {
      cp_async_bulk_wait_group_read<0>();
#pragma unroll
      for (int chunk = 0; chunk < BUFFERS; ++chunk) load_c_in(chunk);
      // The others wait for a buffer, so that at least their way from memory is behind them.
#pragma unroll
      for (int chunk = BUFFERS; chunk < CHUNKS; ++chunk)
        prefetch_tile<Major::K, CHUNK_ROWS, Extra::BATCHED, CHUNK_ROWS>(
            &fused.c_in_map, row_of(chunk), column_of(chunk), z * fused.c_in_step);
    }
    __syncwarp();
    read_bias(0, M, N);
  }

  // Of the chunk's columns and those after it.
  __device__ void read_bias(int chunk, int M, int N) {
    const Vector& bias = fused.bias;
    const Out* from = static_cast<const Out*>(bias.data);
    if (!fused.adds_bias()) return;
    const Place at(m, column_of(chunk));
    if (bias.col_stride == 0) {
#pragma unroll
      for (int i = 0; i < MMAS; ++i) load_rows<Out>(bias, Place(m + 64 * i, n), M, rows[i]);
#pragma unroll
      for (int j = 0; j < BIAS_N / 8; ++j) columns[j].word = 0;
    } else if (bias.col_stride == 1 && column_of(chunk) + BIAS_N <= N &&
               reinterpret_cast<uint64_t>(from) % sizeof(PairOf<Out>) == 0) {
#pragma unroll
      for (int j = 0; j < BIAS_N / 8; ++j)
        columns[j].word = *reinterpret_cast<const decltype(columns[j].word)*>(from + at.n + 8 * j);
    } else {
#pragma unroll
      for (int i = 0; i < BIAS_N / 4; ++i) {
        const int64_t column = at.n + i / 2 * 8 + i % 2;
        columns[i / 2].elements[i % 2] = column < N ? from[column * bias.col_stride] : Out(0);
      }
    }
  }

  // Whether the bias that a thread has ends before this chunk.
  __device__ static constexpr bool begins_bias(int chunk) {
    return chunk > 0 && chunk * WIDTH % BIAS_N == 0 && BIAS_N < BLOCK_N;
  }

  // A chunk of a C_in that TMA cannot reach, in the order of TMA's swizzle.
  __device__ void fill(int chunk, int M, int N) const {
    const Out* from = static_cast<const Out*>(fused.c_in) + z * fused.batch_stride;
    uint8_t* to = buffers + chunk % BUFFERS * CHUNK_BYTES;
#pragma unroll 8
    for (int i = threadIdx.x % 128; i < CHUNK_ROWS * WIDTH; i += 128) {
      const int row = i / WIDTH, byte = i % WIDTH * sizeof(Out);
      const int64_t at_m = row_of(chunk) + row, at_n = column_of(chunk) + i % WIDTH;
      *reinterpret_cast<Out*>(to + row * 128 + (byte / 16 ^ row % 8) * 16 + byte % 16) =
          at_m < M && at_n < N ? from[at_m * fused.row_stride + at_n * fused.col_stride] : Out(0);
    }
  }

  // What is asked seldom, so that its instructions lie apart: alpha, and a bias along the rows.
  template <int REGISTERS>
  __device__ __forceinline__ void scale(float (&d)[MMAS][REGISTERS]) const {
    const bool by_rows = fused.adds_bias() && fused.bias.col_stride == 0;
    if (__builtin_expect(fused.alpha == 1.0f && !by_rows, 1)) return;
#pragma unroll
    for (int i = 0; i < MMAS * REGISTERS; ++i) {
      float& x = d[i / REGISTERS][i % REGISTERS];
      x = fused.alpha * x + (by_rows ? rows[i / REGISTERS][i / 2 % 2] : 0.0f);
    }
  }

  template <int REGISTERS>
  __device__ __forceinline__ void add_bias(float (&d)[REGISTERS], int chunk) const {
    const int first = first_of(chunk) / 2;
    if (fused.adds_bias()) {
#pragma unroll
      for (int i = 0; i < COUNT; ++i)
        d[first + i] += widen<float>(columns[(first + i) / 4 % (BIAS_N / 8)].elements[i % 2]);
    }
  }

  // The accumulators of a chunk become values of C, still to be narrowed.
  template <int REGISTERS>
  __device__ __forceinline__ void finish(float (&d)[REGISTERS], int chunk) const {
    const int first = first_of(chunk) / 2;
    if constexpr (READS) {
      differentiate_chunk<Out>(buffer(chunk), fused.activates(), d, first);
    } else {
      if (fused.reads_c_in())
        with_chunk<Out>(buffer(chunk), d, first,
                        [beta = fused.beta](float& x, float c) { x += beta * c; });
      add_bias(d, chunk);
      activate_sums<COUNT>(fused.activates(), d, first);
    }
  }

  // At the end of the tile, once its products are there.
  template <int REGISTERS>
  __device__ __forceinline__ void store(const CUtensorMap* c_map, const Output& plain,
                                        float (&d)[MMAS][REGISTERS], int M, int N) {
    if constexpr (WRITES) {
      store_both(c_map, plain, d, M, N);
      return;
    }
    if constexpr (IN_ROWS && !FUSED) {
      if (plain.in_rows) {
        store_in_rows(plain, d, M, N);
        return;
      }
    }
    if constexpr (!FUSED && sizeof(Out) == 2) {
      if (plain.odd) {
        store_in_odd_rows(plain, d, M, N);
        return;
      }
    }
    const bool to_plain = plain.data != nullptr;
    bool comes = false, is_brought = false;  // C_in, by TMA and by threads
    if constexpr (FUSED) {
      comes = fused.reads_c_in() && fused.c_in_by_tma;
      is_brought = fused.reads_c_in() && !comes;
      scale(d);
    }
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
      float(&sums)[REGISTERS] = d[chunk / IN_A_ROW];
      if (comes) {
        mbarrier_try_wait_parity(barriers + chunk % BUFFERS * 8, phase);
      } else if (chunk % TOGETHER == 0) {
        // The buffers' last stores have been read out before anyone writes them again.
        if (elected) cp_async_bulk_wait_group_read<BUFFERS / TOGETHER - 1>();
        bar_sync(group, 128);
      }
      if constexpr (FUSED) {
        if (__builtin_expect(is_brought, 0)) {
          fill(chunk, M, N);
          bar_sync(group, 128);
        }
        if (begins_bias(chunk)) read_bias(chunk, M, N);
        finish(sums, chunk);
        __syncwarp();  // its lanes read one another's rows, and no other warp's
      }
      write_chunk<Out, WIDTH>(buffer(chunk), sums, first_of(chunk));
      if ((chunk + 1) % BUFFERS == 0) phase ^= 1;
      if ((chunk + 1) % TOGETHER != 0) continue;
      fence_proxy_async();
      bar_sync(group, 128);
      if (__builtin_expect(to_plain, 0)) {
        for (int each = chunk + 1 - TOGETHER; each <= chunk; ++each)
          copy_chunk<Out, WIDTH, MMAS * BLOCK_N < 384 ? 2 : 1>(
              buffers + each % BUFFERS * CHUNK_BYTES, plain.at(z, sizeof(Out)), row_of(each),
              column_of(each), M, N);
        bar_sync(group, 128);  // the buffers may be written again
      }
      const int next = chunk - BEHIND + BUFFERS;
      if (elected) {
        if (!to_plain) {
#pragma unroll
          for (int each = chunk + 1 - TOGETHER; each <= chunk; ++each) store(c_map, each);
          cp_async_bulk_commit_group();
        }
        if constexpr (FUSED) {
          if (comes && chunk >= BEHIND && next < CHUNKS) {
            cp_async_bulk_wait_group_read<BEHIND>();
            load_c_in(next);
          }
        }
      }
      __syncwarp();
    }
  }

  // Chunks side by side that have buffers at once, so that a row of them is one run.
  static constexpr int RUN = IN_A_ROW <= BUFFERS       ? IN_A_ROW
                             : IN_A_ROW % BUFFERS == 0 ? BUFFERS
                                                       : 1;
  static constexpr int UNITS = WIDTH * sizeof(Out) / 16;  // of a chunk's row

  // Leaves the warp's 16 rows of `run` chunks in the buffers, which it alone reads.
  template <int REGISTERS>
  __device__ __forceinline__ void write_run(int chunk, int run,
                                            const float (&d)[MMAS][REGISTERS]) const {
    __syncwarp();  // all lanes have read the chunks before
#pragma unroll
    for (int i = 0; i < run; ++i)
      write_chunk<Out, WIDTH>(shared_address(buffers) + i * CHUNK_BYTES, d[chunk / IN_A_ROW],
                              first_of(chunk + i));
    __syncwarp();
  }

  // Unit `unit` of row `row` of a run in the buffers.
  __device__ __forceinline__ uint4 unit_of(int row, int unit) const {
    return *reinterpret_cast<const uint4*>(buffers + unit / UNITS * CHUNK_BYTES + row * 128 +
                                           (unit % UNITS ^ row % 8) * 16);
  }

  // The same in runs of a row, by each warp for itself: it reads no row that another one writes.
  template <int REGISTERS>
  __device__ __forceinline__ void store_in_rows(const PlainOutput& c,
                                                const float (&d)[MMAS][REGISTERS], int M, int N) {
    const int first = threadIdx.x % 128 / 32 * 16;  // of the warp's rows
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk += RUN) {
      write_run(chunk, RUN, d);
#pragma unroll 4
      for (int i = threadIdx.x % 32; i < 16 * RUN * UNITS; i += 32) {
        const int row = first + i / (RUN * UNITS), unit = i % (RUN * UNITS);
        const int64_t at_m = row_of(chunk) + row;
        const int at_n = column_of(chunk + unit / UNITS) + unit % UNITS * (16 / int{sizeof(Out)});
        if (at_m < M && at_n < N)
          *reinterpret_cast<uint4*>(static_cast<Out*>(c.data) + at_m * c.row_stride + at_n) =
              unit_of(row, unit);
      }
    }
  }

  // The same where rows are odd.
  template <int REGISTERS>
  __device__ __forceinline__ void store_in_odd_rows(const Output& c,
                                                    const float (&d)[MMAS][REGISTERS], int M,
                                                    int N) {
    // A block of a pair that lies past the last tile may begin among that one's last columns.
    if (c.overlap && n > 0 && N - n <= UNIT_OVERLAP) return;
    constexpr int ODD_RUN = BLOCK_N % WIDTH == 0 ? RUN : 1;  // else chunks overlap
    const int first = threadIdx.x % 128 / 32 * 16;           // of the warp's rows
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk += ODD_RUN) {
      write_run(chunk, ODD_RUN, d);
      const int at_m = row_of(chunk) + first, at_n = column_of(chunk);
      const int columns = min(N - at_n, ODD_RUN * WIDTH);
      // Ends of runs within a tile are nobody else's.
      const bool begins = chunk % IN_A_ROW == 0, ends = (chunk + ODD_RUN) % IN_A_ROW == 0;
      store_odd_rows<ODD_RUN * UNITS>(
          static_cast<uint16_t*>(c.data) + at_m * c.row_stride + at_n, c.row_stride, M - at_m,
          columns, !(c.overlap && begins && at_n > 0),
          !(c.overlap && ends && at_n + columns < N),
          [&](int row, int unit) { return unit_of(first + row, unit); });
    }
  }

  // The same where Z is stored as well.
  template <int REGISTERS>
  __device__ __forceinline__ void store_both(const CUtensorMap* c_map, const PlainOutput& plain,
                                             float (&d)[MMAS][REGISTERS], int M, int N) {
    void* const z_data = fused.c_in_by_tma ? nullptr : const_cast<void*>(fused.c_in);
    const PlainOutput plain_z{z_data, fused.row_stride, fused.col_stride,
                              fused.c_in_vectors && N % 2 == 0, 0};
    scale(d);
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
      float(&sums)[REGISTERS] = d[chunk / IN_A_ROW];
      if (begins_bias(chunk)) read_bias(chunk, M, N);
      add_bias(sums, chunk);
      send(2 * chunk, &fused.c_in_map, plain_z, sums, chunk, M, N);
      activate_sums<COUNT>(fused.activates(), sums, first_of(chunk) / 2);
      send(2 * chunk + 1, c_map, plain, sums, chunk, M, N);
    }
  }

  // Stores a chunk as number `turn` of those that take turns in the buffers. A plain one counts as
  // a store by TMA that is empty.
  template <int REGISTERS>
  __device__ __forceinline__ void send(int turn, const CUtensorMap* map, const PlainOutput& plain,
                                       const float (&sums)[REGISTERS], int chunk, int M, int N) {
    const bool to_plain = plain.data != nullptr;
    if (elected) cp_async_bulk_wait_group_read<BUFFERS - 1>();
    bar_sync(group, 128);
    write_chunk<Out, WIDTH>(buffer(turn), sums, first_of(chunk));
    fence_proxy_async();
    bar_sync(group, 128);
    if (__builtin_expect(to_plain, 0))
      copy_chunk<Out, WIDTH, 1>(buffers + turn % BUFFERS * CHUNK_BYTES, plain, row_of(chunk),
                                column_of(chunk), M, N);
    if (elected) {
      if (!to_plain) tma_store_2d(map, buffer(turn), column_of(chunk), row_of(chunk));
      cp_async_bulk_commit_group();
    }
    __syncwarp();
  }

  __device__ __forceinline__ void store(const CUtensorMap* c_map, int chunk) const {
    if constexpr (Extra::BATCHED)
      tma_store_3d(c_map, buffer(chunk), column_of(chunk), row_of(chunk), z);
    else
      tma_store_2d(c_map, buffer(chunk), column_of(chunk), row_of(chunk));
  }
};

}  // namespace tcgemm::sm90
