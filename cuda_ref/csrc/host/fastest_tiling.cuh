// The choice of a tiling of C among those that a rung is built with. Host code.
#pragma once

#include "sm90/tensor_map.cuh"

#include <algorithm>

namespace tcgemm::sm90 {

// Calls body(T{}) with that T of Ts which ends first: waves of tiles x area of a tile / rate, for
// tiles of T::M x T::N. tilings.py says the same of a plan.
template <typename... Ts, typename Body>
int with_fastest(const Gemm& gemm, const Body& body) {
  int sms = 0;
  if (const int error = multiprocessors(&sms)) return error;
  const auto time = [&](auto tiling) {
    using T = decltype(tiling);
    const int64_t tiles = ceil_div(gemm.c.rows, T::M) * ceil_div(gemm.c.cols, T::N) * gemm.batch;
    return static_cast<double>(ceil_div(tiles, sms) * T::M * T::N) / T::RATE;
  };
  const double least = std::min({time(Ts{})...});
  int result = cudaErrorNotSupported;
  bool found = false;
  const auto try_tiling = [&](auto tiling) {
    if (!found && time(tiling) == least) found = true, result = body(tiling);
  };
  (try_tiling(Ts{}), ...);
  return result;
}

}  // namespace tcgemm::sm90
