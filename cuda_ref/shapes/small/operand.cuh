// An operand of small.cu.
#pragma once

#include "host/gemm.cuh"

namespace tcgemm::sm90 {

// How an operand is read: in words along K, or along M or N; or that none fit but elements.
enum class Access { K, MN, elements };

// A, or B by its columns: element (mn, k) is at data + mn * mn_stride + k * k_stride.
struct Side {
  const uint16_t* data;
  int64_t mn_stride, k_stride, batch_stride;
  int mn, K;
};

}  // namespace tcgemm::sm90
