// The host side of the Hopper rungs: which way TMA can read an operand, its tensor map, the choice
// of the kernel's instance, and the launch of clusters.
//
// A tensor map is a pure function of address, extents, pitch, box and element type, so it is kept
// and never goes stale: encoding costs about a microsecond, finding it again tens of nanoseconds.
#pragma once

#include "tile/epilogue.cuh"
#include "host/gemm.cuh"
#include "host/select.cuh"
#include "ptx/wgmma.cuh"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>

#ifndef TCGEMM_SIMULATOR
#include <pthread.h>
#endif

namespace tcgemm::sm90 {

#ifndef TCGEMM_SIMULATOR

// cuTensorMapEncodeTiled, asked of the driver at run time so that nothing links against libcuda.
inline decltype(&cuTensorMapEncodeTiled) tensor_map_encoder() {
  static const auto encoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                         cudaEnableDefault, &found);
    if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) function = nullptr;
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  return encoder;
}

#endif

// A 2-D box of a 2-D tensor whose inner dimension is contiguous, or of each matrix of a batch (3-D,
// with batch > 0). Extents in elements. `to_tf32`: float32 arrives as tf32, rounded to nearest even.
struct TensorMapKey {
  void* data;
  uint64_t inner, outer, pitch_bytes;
  uint64_t batch, batch_pitch_bytes;
  uint32_t box_inner, box_outer;
  DType type;
  bool to_tf32;

  bool operator==(const TensorMapKey& o) const {
    return data == o.data && inner == o.inner && outer == o.outer && pitch_bytes == o.pitch_bytes &&
           batch == o.batch && batch_pitch_bytes == o.batch_pitch_bytes &&
           box_inner == o.box_inner && box_outer == o.box_outer && type == o.type &&
           to_tf32 == o.to_tf32;
  }

  size_t hash() const {
    size_t h = 0;
    for (uint64_t part : {reinterpret_cast<uint64_t>(data) >> 4, inner, outer, pitch_bytes, batch,
                          batch_pitch_bytes, static_cast<uint64_t>(box_inner) << 32 | box_outer,
                          static_cast<uint64_t>(type) << 1 | to_tf32})
      h = (h ^ part) * 0x9E3779B97F4A7C15ull;
    return h ^ h >> 32;
  }
};

#ifndef TCGEMM_SIMULATOR

inline CUtensorMapDataType tensor_map_type(const TensorMapKey& key) {
  switch (key.type) {
    case DType::f16: return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::bf16: return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::f32:
      return key.to_tf32 ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case DType::f64: return CU_TENSOR_MAP_DATA_TYPE_FLOAT64;
    case DType::s32: return CU_TENSOR_MAP_DATA_TYPE_INT32;
    default: return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  }
}

// Holds a mutex. std::mutex brings strings, clocks and tuples with it, which a build's three compilers
// read for most of a second.
struct Held {
  explicit Held(pthread_mutex_t* mutex) : mutex(mutex) { pthread_mutex_lock(mutex); }
  ~Held() { pthread_mutex_unlock(mutex); }
  Held(const Held&) = delete;
  pthread_mutex_t* const mutex;
};

// Writes the tensor map of `key` (128-byte swizzle) to `map`: a cudaError_t. Thread-safe; keeps
// the last map of each of 1,024 slots.
inline int tensor_map(const TensorMapKey& key, CUtensorMap* map) {
  struct Slot {
    TensorMapKey key{};
    CUtensorMap map;
  };
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  static auto& slots = *new std::array<Slot, 1024>;
  Slot& slot = slots[key.hash() % slots.size()];
  const Held held(&mutex);
  if (!(slot.key == key)) {
    auto encode = tensor_map_encoder();
    if (encode == nullptr) return cudaErrorNotSupported;
    cuuint64_t extents[3] = {key.inner, key.outer, key.batch};
    cuuint64_t pitches[2] = {key.pitch_bytes, key.batch_pitch_bytes};
    cuuint32_t box[3] = {key.box_inner, key.box_outer, 1};
    cuuint32_t steps[3] = {1, 1, 1};
    slot.key = TensorMapKey{};
    CUresult result =
        encode(&slot.map, tensor_map_type(key), key.batch ? 3 : 2, key.data, extents, pitches, box,
               steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) return cudaErrorInvalidValue;
    slot.key = key;
  }
  *map = slot.map;
  return cudaSuccess;
}

#else

inline int tensor_map(const TensorMapKey& key, CUtensorMap* map) {
  *map = {key.data,
          key.inner,
          key.outer,
          key.pitch_bytes,
          key.box_inner,
          key.box_outer,
          static_cast<uint32_t>(bytes_of(key.type)),
          key.to_tf32,
          key.batch,
          key.batch_pitch_bytes,
          {}};
  return cudaSuccess;
}

#endif

// Coordinates are 32-bit, and the last tile may reach 255 past the end.
constexpr int64_t MOST_ELEMENTS = INT32_MAX - 255;

// The tensor map of `matrix` with its columns (or, with inner_is_rows, its rows) innermost.
// cudaErrorInvalidValue where TMA cannot read or write it that way: the base and the pitch must be
// multiples of 16 bytes and the inner stride 1. The stride of a dimension of extent 1 is free.
//
// With batch > 0 the map has a third dimension of as many matrices, one where they are all the same
// (batch stride 0): such a map takes coordinate 0 for each of them.
inline int tensor_map(const Matrix& matrix, bool inner_is_rows, DType type, uint32_t box_inner,
                      uint32_t box_outer, CUtensorMap* map, int64_t batch = 0,
                      bool to_tf32 = false) {
  int64_t inner = matrix.cols, inner_stride = matrix.col_stride;
  int64_t outer = matrix.rows, outer_stride = matrix.row_stride;
  if (inner_is_rows) {
    std::swap(inner, outer);
    std::swap(inner_stride, outer_stride);
  }
  const int64_t bytes = bytes_of(type);
  int64_t pitch = outer == 1 ? (inner * bytes + 15) / 16 * 16 : outer_stride * bytes;
  int64_t batch_pitch = matrix.batch_stride * bytes;
  if (batch > 0 && (batch == 1 || batch_pitch == 0)) batch = 1, batch_pitch = pitch;
  if (inner > MOST_ELEMENTS || outer > MOST_ELEMENTS || (inner > 1 && inner_stride != 1) || pitch <= 0 ||
      pitch % 16 != 0 || pitch >= int64_t{1} << 40 ||
      (batch > 0 && (batch_pitch <= 0 || batch_pitch % 16 != 0 ||
                     batch_pitch >= int64_t{1} << 40 || batch > MOST_ELEMENTS)) ||
      reinterpret_cast<uint64_t>(matrix.data) % 16 != 0)
    return cudaErrorInvalidValue;
  return tensor_map(TensorMapKey{matrix.data, static_cast<uint64_t>(inner),
                                 static_cast<uint64_t>(outer), static_cast<uint64_t>(pitch),
                                 static_cast<uint64_t>(batch), static_cast<uint64_t>(batch_pitch),
                                 box_inner, box_outer, type, to_tf32},
                    map);
}

// An operand's tensor map in whichever major TMA can read; K-major where both will do.
// Boxes are panels: 64 along K by `rows` of M or N when K-major, `panel` of M or N by `depth` along K
// else.
inline int operand_map(const Matrix& matrix, bool rows_are_k, DType type, uint32_t rows,
                       CUtensorMap* map, Major* major, int64_t batch = 0, uint32_t panel = PANEL,
                       uint32_t depth = PANEL) {
  *major = Major::K;
  int error = tensor_map(matrix, rows_are_k, type, PANEL, rows, map, batch);
  if (error == cudaErrorInvalidValue) {
    *major = Major::MN;
    error = tensor_map(matrix, !rows_are_k, type, panel, depth, map, batch);
  }
  return error;
}

// C, where TMA cannot write it: element (m, n) is at data + m * row_stride + n * col_stride.
// With `pairs`, two neighbours in a row may be stored as one word.
struct PlainOutput {
  void* data;
  int64_t row_stride, col_stride;
  bool pairs;
  int64_t batch_stride;

  // The matrix `batch` of it.
  __device__ PlainOutput at(int batch, int element_bytes) const {
    PlainOutput c = *this;
    c.data = static_cast<char*>(data) + batch * batch_stride * element_bytes;
    return c;
  }
};

inline PlainOutput plain_output(const Matrix& c, DType type) {
  const int64_t pair = 2 * bytes_of(type);
  bool pairs = c.col_stride == 1 && c.row_stride % 2 == 0 && c.cols % 2 == 0 &&
               c.batch_stride % 2 == 0 && reinterpret_cast<uint64_t>(c.data) % pair == 0;
  return {c.data, c.row_stride, c.col_stride, pairs, c.batch_stride};
}

// The tensor map that stores C in chunks of `rows` rows x 128 bytes, or fewer, `columns` of them; and a
// plain output without data. Where TMA cannot store C, the plain output of all of it. TMA stores whole
// 16-byte units only: with 129 columns of 16 bits it would write seven elements past each row.
inline PlainOutput output_map(const Matrix& c, DType type, uint32_t rows, CUtensorMap* map,
                              int64_t batch = 0, int columns = 128) {
  const int bytes = bytes_of(type);
  PlainOutput plain = plain_output(c, type);
  if (c.cols * bytes % 16 == 0 && (batch < 2 || c.batch_stride != 0) &&
      tensor_map(c, false, type, static_cast<uint32_t>(std::min(columns, 128 / bytes)), rows, map,
                 batch) == cudaSuccess)
    plain.data = nullptr;
  return plain;
}

// Asks for the maps at a kernel's start, by a thread: the first load would wait for those of A and
// B, and the first store for that of C, with all else done.
__device__ __forceinline__ void prefetch_tensormaps(const CUtensorMap& a_map,
                                                    const CUtensorMap& b_map,
                                                    const CUtensorMap& c_map,
                                                    const PlainOutput& plain) {
  prefetch_tensormap(&a_map);
  prefetch_tensormap(&b_map);
  if (plain.data == nullptr) prefetch_tensormap(&c_map);
}

// The multiprocessors of the current device, asked once per device.
inline int multiprocessors(int* count) {
  static std::array<std::atomic<int>, 64> counts{};
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  std::atomic<int>& known = counts[device % counts.size()];
  if (known == 0) {
    int value = 0;
    error = cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device);
    if (error != cudaSuccess) return error;
    known = value;
  }
  *count = known;
  return cudaSuccess;
}

// Calls body(major of A, major of B) with integral_constants.
template <typename Body>
int with_majors(Major a, Major b, Body body) {
  constexpr std::integral_constant<Major, Major::K> k;
  constexpr std::integral_constant<Major, Major::MN> mn;
  if (a == Major::K) return b == Major::K ? body(k, k) : body(k, mn);
  return b == Major::K ? body(mn, k) : body(mn, mn);
}

// Calls body(In{}, Out{}, major of A, major of B), the majors as integral_constant: one compiled
// instance of a kernel for each combination.
template <typename Body>
int with_types_and_majors(const Gemm& gemm, Major a, Major b, Body body) {
  return with_types(gemm, [&](auto in, auto out) {
    return with_majors(a, b, [&](auto a, auto b) { return body(in, out, a, b); });
  });
}

#ifndef TCGEMM_SIMULATOR

// Kernels of this library, by address: all of them trigger programmatic dependent launch.
inline std::atomic<uintptr_t>& kernel_slot(const void* kernel) {
  static std::array<std::atomic<uintptr_t>, 64> kernels{};
  return kernels[reinterpret_cast<uintptr_t>(kernel) / 16 % kernels.size()];
}

// Whether a kernel launched now may start before the one ahead of it in the stream has ended.
//
// In a stream this saves a microsecond whoever is ahead. In a graph a programmatic edge behind a
// kernel that never triggers costs 0.3 to 0.6 us more than a plain one (H200), so while a graph is
// captured there is one only behind a kernel of this library.
inline bool starts_early(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) != cudaSuccess) return false;
  if (status != cudaStreamCaptureStatusActive) return true;
  const cudaGraphNode_t* ahead = nullptr;
  size_t count = 0;
#if CUDART_VERSION >= 13000
  const cudaGraphEdgeData* edges = nullptr;
  cudaError_t error =
      cudaStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &ahead, &edges, &count);
#else
  cudaError_t error =
      cudaStreamGetCaptureInfo_v2(stream, &status, nullptr, nullptr, &ahead, &count);
#endif
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  cudaKernelNodeParams params = {};
  if (error == cudaSuccess && count == 1) error = cudaGraphNodeGetType(ahead[0], &type);
  if (error != cudaSuccess || type != cudaGraphNodeTypeKernel ||
      cudaGraphKernelNodeGetParams(ahead[0], &params) != cudaSuccess) {
    cudaGetLastError();  // a kernel that the runtime has no name for is somebody else's
    return false;
  }
  return kernel_slot(params.func) == reinterpret_cast<uintptr_t>(params.func);
}

// Starts clusters of `cluster` blocks. Where `early`, the grid may start while the one before it in
// the stream still runs: the kernel must call griddepcontrol_wait before it touches global memory.
template <typename... Params, typename... Args>
int launch_clusters(bool early, void (*kernel)(Params...), unsigned clusters, unsigned cluster,
                    dim3 block, size_t shared_bytes, cudaStream_t stream, Args... args) {
  int error = allow_shared(reinterpret_cast<const void*>(kernel), shared_bytes);
  if (error == cudaSuccess && cluster > MAX_CLUSTER)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (error != cudaSuccess) return error;
  // Only what is asked for: with a cluster of one block asked for, a grid of thousands of blocks
  // takes a microsecond more to start than without (docs/lab/cuda_small.md).
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = cluster;
    attributes[count].val.clusterDim.y = attributes[count].val.clusterDim.z = 1;
    ++count;
  }
  if (early && starts_early(stream)) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count].val.programmaticStreamSerializationAllowed = 1;
    ++count;
  }
  kernel_slot(reinterpret_cast<const void*>(kernel)) = reinterpret_cast<uintptr_t>(kernel);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(clusters * cluster);
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

template <typename... Params, typename... Args>
int launch_clusters(void (*kernel)(Params...), unsigned clusters, unsigned cluster, dim3 block,
                    size_t shared_bytes, cudaStream_t stream, Args... args) {
  return launch_clusters(true, kernel, clusters, cluster, block, shared_bytes, stream, args...);
}

#endif

}  // namespace tcgemm::sm90
