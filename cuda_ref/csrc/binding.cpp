// The one place where torch meets a rung: tensors in, pointers and strides out.
//
// Compiled once for each rung, which passes its operator's name as TCGEMM_OPERATOR. Operators are
// registered as tcgemm_cuda::NAME(Tensor a, Tensor b, Tensor(c!) c) -> ().
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "gemm.cuh"

#define TCGEMM_QUOTE(x) #x
#define TCGEMM_STRING(x) TCGEMM_QUOTE(x)

namespace {

tcgemm::DType dtype(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kHalf:
      return tcgemm::DType::f16;
    case at::kBFloat16:
      return tcgemm::DType::bf16;
    case at::kFloat:
      return tcgemm::DType::f32;
    default:
      TORCH_CHECK(false, TCGEMM_STRING(TCGEMM_OPERATOR), " takes no ", tensor.scalar_type());
  }
}

tcgemm::Matrix matrix(const at::Tensor& tensor) {
  return {tensor.data_ptr(), tensor.size(0), tensor.size(1), tensor.stride(0), tensor.stride(1)};
}

// The caller has checked shapes, types, devices and aliasing.
void run(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
  const c10::cuda::CUDAGuard guard(a.device());
  const tcgemm::Gemm gemm = {matrix(a), matrix(b), matrix(c), dtype(a), dtype(c)};
  const int code = tcgemm_launch(gemm, c10::cuda::getCurrentCUDAStream(a.get_device()));
  if (code != cudaSuccess) {
    cudaGetLastError();
    TORCH_CHECK(false, "the launch of ", TCGEMM_STRING(TCGEMM_OPERATOR), " failed at M=", a.size(0),
                " N=", b.size(1), " K=", a.size(1), ": ",
                cudaGetErrorString(static_cast<cudaError_t>(code)));
  }
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tcgemm_cuda, library) {
  library.def(TCGEMM_STRING(TCGEMM_OPERATOR) "(Tensor a, Tensor b, Tensor(c!) c) -> ()",
              torch::dispatch(c10::DispatchKey::CUDA, TORCH_FN(run)));
}
