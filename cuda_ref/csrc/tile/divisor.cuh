// Division by what the host knows, as a multiplication. The GPU has no instruction that divides
// integers: one takes some forty that wait for each other, about 100 ns, which is much of what comes
// before a short kernel's first load (docs/lab/cuda_thin.md).
#pragma once

#include <cstdint>

namespace tcgemm {

// With n = ceil(log2 d) and factor = floor(2^32 (2^n - d) / d) + 1, x / d = (x factor / 2^32 + x) /
// 2^n, rounded down, for each x below 2^31 (Granlund and Montgomery, Division by Invariant Integers
// using Multiplication, 1994).
struct Divisor {
  uint32_t factor;
  int32_t shift;

  // d: from 1 to 2^31.
  static Divisor of(int64_t d) {
    int shift = 0;
    while (int64_t{1} << shift < d) ++shift;
    const uint64_t above = (uint64_t{1} << shift) - static_cast<uint64_t>(d);
    return {static_cast<uint32_t>((above << 32) / static_cast<uint64_t>(d) + 1), shift};
  }

  // x: up to 2^31 - 1.
  __host__ __device__ uint32_t quotient(uint32_t x) const {
    return (static_cast<uint32_t>(uint64_t{x} * factor >> 32) + x) >> shift;
  }
};

}  // namespace tcgemm
