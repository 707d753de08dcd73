// The one place where torch's memory meets a rung: addresses in, a launch out.
//
// Compiled once and linked into each rung's library. All that is the same in every call of a kind
// stands in a Gemm that Python keeps (cuda_ref/handle.py) and names by its address, its handle; a
// call adds addresses and a stream. Python reads nothing but these functions' return codes.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>

#include <exception>
#include <string>
#include <vector>

#include "host/gemm.cuh"

#define TCGEMM_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

enum Failure : int { raised = -1, out_of_memory = -2 };

thread_local std::string last_words;

// What one launch took from torch's allocator, given back when its kernels are in the stream: the
// allocator hands it on to later work of the same stream only.
struct Loans {
  std::vector<void*> pointers;
  ~Loans() {
    for (void* pointer : pointers) c10::cuda::CUDACachingAllocator::raw_delete(pointer);
  }
};
thread_local Loans* loans = nullptr;

void* lend(size_t bytes, cudaStream_t stream) {
  void* pointer = c10::cuda::CUDACachingAllocator::raw_alloc_with_stream(bytes, stream);
  loans->pointers.push_back(pointer);
  return pointer;
}

int failed(Failure failure, const std::exception& error) {
  last_words = error.what();
  return failure;
}

int start(tcgemm::Gemm& gemm, cudaStream_t stream, void* a, void* b, void* c) {
  gemm.a.data = a;
  gemm.b.data = b;
  gemm.c.data = c;
  gemm.scratch.allocate = lend;
  Loans taken;
  loans = &taken;
  try {
    const int code = tcgemm_launch(gemm, stream);
    if (code != cudaSuccess) cudaGetLastError();
    return code;
  } catch (const c10::OutOfMemoryError& error) {
    return failed(out_of_memory, error);
  } catch (const std::exception& error) {
    return failed(raised, error);
  }
}

}  // namespace

// Starts one plain product of this kind on a stream of the current device. Returns a cudaError_t,
// or a Failure.
TCGEMM_EXPORT int tcgemm_start(const tcgemm::Gemm* kind, cudaStream_t stream, void* a, void* b,
                               void* c) {
  tcgemm::Gemm gemm = *kind;
  return start(gemm, stream, a, b, c);
}

// The same with all that a Gemm holds; an operand that the kind has none of is null.
TCGEMM_EXPORT int tcgemm_start_fused(const tcgemm::Gemm* kind, cudaStream_t stream, void* a,
                                     void* b, void* c, void* c_in, const void* bias,
                                     const void* scale_a, const void* scale_b) {
  tcgemm::Gemm gemm = *kind;
  gemm.c_in.data = c_in;
  gemm.bias.data = bias;
  gemm.scale_a.data = scale_a;
  gemm.scale_b.data = scale_b;
  return start(gemm, stream, a, b, c);
}

// What this thread's last call that returned the code failed with.
TCGEMM_EXPORT const char* tcgemm_error(int code) {
  return code < 0 ? last_words.c_str() : cudaGetErrorString(static_cast<cudaError_t>(code));
}
