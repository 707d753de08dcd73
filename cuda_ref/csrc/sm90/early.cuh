// Launches of one kernel of independent blocks: early, where the GPU can.
#pragma once

#include "sm90/tensor_map.cuh"

namespace tcgemm::sm90 {

// `blocks` blocks of so many warps, with so much shared memory. Built for sm_90 and later they may
// start before the kernel ahead has ended, where starts_early allows it: in a stream always, in a
// graph behind a kernel of this library alone. So a kernel waits by griddepcontrol_wait before it
// reads or writes what others have to do with; built for older GPUs it has nothing to wait for.
template <typename... Params, typename... Args>
int start_blocks(void (*kernel)(Params...), int64_t blocks, int warps, size_t shared_bytes,
                 cudaStream_t stream, Args... args) {
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
#if TCGEMM_SM >= 90
  return launch_clusters(kernel, static_cast<unsigned>(blocks), 1, dim3(32 * warps),
                         shared_bytes, stream, args...);
#else
  return launch(kernel, dim3(static_cast<unsigned>(blocks)), dim3(32 * warps), shared_bytes, stream,
                args...);
#endif
}

}  // namespace tcgemm::sm90
