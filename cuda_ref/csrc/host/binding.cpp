// The one place where torch meets a rung: tensors in, pointers and strides out.
//
// Compiled once for each rung, which passes its operator's name as TCGEMM_OPERATOR. The operators
// are tcgemm_cuda::NAME(Tensor a, Tensor b, Tensor(c!) c, int[] plan=[]) -> (), the plain product,
// which costs least to call, and tcgemm_cuda::NAME.fused, which takes all that a Gemm holds. All
// matrices have two dimensions, or all three, the first of which is the batch.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <iterator>
#include <optional>
#include <vector>

#include "host/gemm.cuh"

#define TCGEMM_QUOTE(x) #x
#define TCGEMM_STRING(x) TCGEMM_QUOTE(x)

namespace {

using OptionalTensor = std::optional<at::Tensor>;

tcgemm::DType dtype(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kHalf:
      return tcgemm::DType::f16;
    case at::kBFloat16:
      return tcgemm::DType::bf16;
    case at::kFloat:
      return tcgemm::DType::f32;
    case at::kDouble:
      return tcgemm::DType::f64;
    case at::kChar:
      return tcgemm::DType::s8;
    case at::kByte:
      return tcgemm::DType::u8;
    case at::kInt:
      return tcgemm::DType::s32;
    case at::kFloat8_e4m3fn:
      return tcgemm::DType::e4m3;
    case at::kFloat8_e5m2:
      return tcgemm::DType::e5m2;
    default:
      TORCH_CHECK(false, TCGEMM_STRING(TCGEMM_OPERATOR), " takes no ", tensor.scalar_type());
  }
}

tcgemm::Matrix matrix(const at::Tensor& tensor) {
  const int64_t row = tensor.dim() - 2;
  return {tensor.data_ptr(),     tensor.size(row),       tensor.size(row + 1), tensor.stride(row),
          tensor.stride(row + 1), row ? tensor.stride(0) : 0};
}

// A scale of one element, or one for each row (dimension 0) or column (1) of C; or a bias.
tcgemm::Vector vector(const OptionalTensor& tensor, int dimension) {
  if (!tensor) return {};
  const int64_t stride = tensor->numel() == 1 ? 0 : tensor->stride(-1);
  return {tensor->data_ptr(), dimension == 0 ? stride : 0, dimension == 1 ? stride : 0};
}

tcgemm::Gemm plain_gemm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
  tcgemm::Gemm gemm;
  gemm.a = matrix(a);
  gemm.b = matrix(b);
  gemm.c = matrix(c);
  gemm.in = dtype(a);
  gemm.out = dtype(c);
  gemm.batch = c.dim() == 3 ? c.size(0) : 1;
  return gemm;
}

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

// The fields of a Plan in its order; those behind the last that is given are 0.
tcgemm::Plan plan_from(at::IntArrayRef fields) {
  tcgemm::Plan plan;
  int32_t* const to[] = {&plan.cluster, &plan.block_m, &plan.block_n,   &plan.splits, &plan.groups,
                         &plan.warps,   &plan.blocks,  &plan.shared_kb, &plan.no_pdl};
  TORCH_CHECK(fields.size() <= std::size(to), "a plan has ", std::size(to), " numbers and not ",
              fields.size());
  for (size_t i = 0; i < fields.size(); ++i) *to[i] = static_cast<int32_t>(fields[i]);
  return plan;
}

void start(tcgemm::Gemm gemm, const at::Device& device) {
  const c10::cuda::CUDAGuard guard(device);
  Loans taken;
  loans = &taken;
  gemm.scratch.allocate = lend;
  const int code = tcgemm_launch(gemm, c10::cuda::getCurrentCUDAStream(device.index()));
  if (code != cudaSuccess) {
    cudaGetLastError();
    TORCH_CHECK(false, "the launch of ", TCGEMM_STRING(TCGEMM_OPERATOR), " failed at M=",
                gemm.c.rows, " N=", gemm.c.cols, " K=", gemm.a.cols, " batch=", gemm.batch, ": ",
                cudaGetErrorString(static_cast<cudaError_t>(code)));
  }
}

// The caller has checked shapes, types, devices and aliasing.
void run(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c,
         at::IntArrayRef plan) {
  tcgemm::Gemm gemm = plain_gemm(a, b, c);
  const tcgemm::Plan planned = plan_from(plan);
  gemm.plan = &planned;
  start(gemm, a.device());
}

void run_fused(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c,
               const OptionalTensor& c_in, const OptionalTensor& bias,
               const OptionalTensor& scale_a, const OptionalTensor& scale_b, double alpha,
               double beta, int64_t activation, int64_t compute, int64_t mma_m, int64_t mma_n,
               at::IntArrayRef plan) {
  tcgemm::Gemm gemm = plain_gemm(a, b, c);
  if (c_in) gemm.c_in = matrix(*c_in);
  gemm.bias = vector(bias, 1);
  gemm.scale_a = vector(scale_a, 0);
  gemm.scale_b = vector(scale_b, 1);
  gemm.alpha = alpha;
  gemm.beta = beta;
  gemm.activation = static_cast<tcgemm::Activation>(activation);
  gemm.compute = static_cast<tcgemm::Compute>(compute);
  gemm.mma_m = static_cast<int32_t>(mma_m);
  gemm.mma_n = static_cast<int32_t>(mma_n);
  const tcgemm::Plan planned = plan_from(plan);
  gemm.plan = &planned;
  start(gemm, a.device());
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tcgemm_cuda, library) {
  library.def(TCGEMM_STRING(TCGEMM_OPERATOR)
              "(Tensor a, Tensor b, Tensor(c!) c, int[] plan=[]) -> ()",
              torch::dispatch(c10::DispatchKey::CUDA, TORCH_FN(run)));
  library.def(TCGEMM_STRING(TCGEMM_OPERATOR)
              ".fused(Tensor a, Tensor b, Tensor(c!) c, Tensor? c_in, Tensor? bias, "
              "Tensor? scale_a, Tensor? scale_b, float alpha, float beta, int activation, "
              "int compute, int mma_m, int mma_n, int[] plan=[]) -> ()",
              torch::dispatch(c10::DispatchKey::CUDA, TORCH_FN(run_fused)));
}
