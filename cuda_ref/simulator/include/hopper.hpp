// Hopper's instructions on a CPU: the names of csrc/sm90.cuh and csrc/wgmma.cuh.
//
// What is asynchronous happens as late as it may: a bulk load when somebody waits for its barrier,
// a wgmma at the wait for its group, a bulk store when its issuer waits or returns. A wait that is
// missing therefore shows in every order.
#pragma once

#include "runtime.hpp"

// As large and as aligned as the driver's.
struct __attribute__((aligned(64))) CUtensorMap {
  void* data;
  uint64_t inner, outer, pitch_bytes;  // extents in elements
  uint32_t box_inner, box_outer, item_bytes;
  uint32_t rounds;                    // float32 to tf32
  uint64_t batch, batch_pitch_bytes;  // matrices; 0: two dimensions
  uint32_t unused[16];
};
static_assert(sizeof(CUtensorMap) == 128);

namespace tcgemm::simulator {

void mbarrier_init(uint32_t barrier, uint32_t count);
void mbarrier_arrive(uint32_t barrier, uint32_t transaction_bytes, Site site);
void mbarrier_arrive_cluster(uint32_t barrier, uint32_t rank, Site site);
void mbarrier_wait(uint32_t barrier, uint32_t parity, Site site);

// A box of the tensor to shared memory with the 128-byte swizzle, in rows of 128 bytes even where
// the box has fewer, zeros outside the tensor; its bytes count towards the barrier when it lands.
void bulk_load(uint32_t shared, const CUtensorMap* map, uint32_t barrier, int inner, int outer,
               int batch, Site site);
// The same in each block of the cluster whose bit is set; the tensor is read once.
void bulk_load_multicast(uint32_t shared, const CUtensorMap* map, uint32_t barrier, int inner,
                         int outer, int batch, uint32_t ranks, Site site);
// From this block's shared memory to another's, which waits for it at its barrier.
void bulk_transfer(uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier, uint32_t rank,
                   Site site);
// What lies there in another block.
float load_cluster(uint32_t at, uint32_t rank, Site site);
uint32_t cluster_rank();
// The barrier of all threads of the cluster. `release`: what they wrote is seen by who waits.
void cluster_arrive(bool release, Site site);
void cluster_wait(Site site);
void bulk_store(const CUtensorMap* map, uint32_t shared, int inner, int outer, int batch,
                Site site);
// Bytes as they lie in shared memory.
void bulk_store_bytes(void* to, uint32_t shared, uint32_t bytes, Site site);
void bulk_commit();
// What the running thread has written to shared memory is there for bulk stores and wgmma.
void fence_proxy_async();
void bulk_wait_read(int pending);
void bulk_wait_all();

// The running warp's 16 rows of D[64, n] += A[64, k] B[k, n], k being 32 bytes; d: n / 2 floats, or
// int32 for integers, of each lane.
void wgmma(Element element, int n, bool a_mn_major, bool b_mn_major, void* d, uint64_t a,
           uint64_t b, bool accumulate, Site site);
// The same of tf32, with A in four registers of each lane, which are read when it is multiplied.
void wgmma_registers(int n, void* d, const void* a, uint64_t b, bool accumulate, Site site);
void wgmma_fence();
void wgmma_commit(Site site);
void wgmma_wait(int pending, Site site);

// `transposed`: what is stored as a row is a column of the matrix.
void stmatrix(uint32_t row, const uint32_t* registers, int count, bool transposed, Site site);

}  // namespace tcgemm::simulator

namespace tcgemm::sm90 {

constexpr int MAX_CLUSTER = simulator::MAX_CLUSTER;

inline uint32_t shared_address(const void* pointer) { return simulator::shared_address(pointer); }

inline void mbarrier_init(uint32_t barrier, uint32_t count) {
  simulator::mbarrier_init(barrier, count);
}
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive(uint32_t barrier, TCGEMM_HERE) {
  simulator::mbarrier_arrive(barrier, 0, site);
}
inline void mbarrier_arrive_cluster(uint32_t barrier, uint32_t cta, TCGEMM_HERE) {
  simulator::mbarrier_arrive_cluster(barrier, cta, site);
}
inline void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes, TCGEMM_HERE) {
  simulator::mbarrier_arrive(barrier, bytes, site);
}
inline void mbarrier_try_wait_parity(uint32_t barrier, uint32_t parity, TCGEMM_HERE) {
  simulator::mbarrier_wait(barrier, parity, site);
}

inline void prefetch_tensormap(const CUtensorMap*) {}
inline void cp_async_bulk_tensor_2d(uint32_t shared, const CUtensorMap* map, uint32_t barrier,
                                    int inner, int outer, TCGEMM_HERE) {
  simulator::bulk_load(shared, map, barrier, inner, outer, 0, site);
}
inline void cp_async_bulk_tensor_2d_evict_first(uint32_t shared, const CUtensorMap* map,
                                                uint32_t barrier, int inner, int outer,
                                                TCGEMM_HERE) {
  simulator::bulk_load(shared, map, barrier, inner, outer, 0, site);
}
inline void cp_async_bulk_tensor_2d_multicast(uint32_t shared, const CUtensorMap* map,
                                              uint32_t barrier, int inner, int outer,
                                              uint16_t ctas, TCGEMM_HERE) {
  simulator::bulk_load_multicast(shared, map, barrier, inner, outer, 0, ctas, site);
}
inline void cp_async_bulk_tensor_3d(uint32_t shared, const CUtensorMap* map, uint32_t barrier,
                                    int inner, int outer, int batch, TCGEMM_HERE) {
  simulator::bulk_load(shared, map, barrier, inner, outer, batch, site);
}
inline void cp_async_bulk_tensor_3d_multicast(uint32_t shared, const CUtensorMap* map,
                                              uint32_t barrier, int inner, int outer, int batch,
                                              uint16_t ctas, TCGEMM_HERE) {
  simulator::bulk_load_multicast(shared, map, barrier, inner, outer, batch, ctas, site);
}
inline void tma_store_2d(const CUtensorMap* map, uint32_t shared, int inner, int outer,
                         TCGEMM_HERE) {
  simulator::bulk_store(map, shared, inner, outer, 0, site);
}
inline void tma_store_3d(const CUtensorMap* map, uint32_t shared, int inner, int outer, int batch,
                         TCGEMM_HERE) {
  simulator::bulk_store(map, shared, inner, outer, batch, site);
}
inline void cp_async_bulk_global(void* to, uint32_t shared, uint32_t bytes, TCGEMM_HERE) {
  simulator::bulk_store_bytes(to, shared, bytes, site);
}
inline void fence_proxy_async() { simulator::fence_proxy_async(); }
inline void cp_async_bulk_commit_group() { simulator::bulk_commit(); }
template <int PENDING>
inline void cp_async_bulk_wait_group_read() {
  simulator::bulk_wait_read(PENDING);
}
inline void cp_async_bulk_wait_all() { simulator::bulk_wait_all(); }

template <int REGISTERS>
inline void setmaxnreg_inc() {}
template <int REGISTERS>
inline void setmaxnreg_dec() {}
inline void bar_sync(uint32_t barrier, uint32_t threads, TCGEMM_HERE) {
  simulator::sync_named(static_cast<int>(barrier), static_cast<int>(threads), site);
}
inline void stmatrix_x4(uint32_t shared, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3,
                        TCGEMM_HERE) {
  const uint32_t registers[4] = {m0, m1, m2, m3};
  simulator::stmatrix(shared, registers, 4, false, site);
}
inline void stmatrix_x4_trans(uint32_t shared, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3,
                              TCGEMM_HERE) {
  const uint32_t registers[4] = {m0, m1, m2, m3};
  simulator::stmatrix(shared, registers, 4, true, site);
}
inline uint32_t cluster_ctarank() { return simulator::cluster_rank(); }
inline void barrier_cluster_arrive(TCGEMM_HERE) { simulator::cluster_arrive(true, site); }
inline void barrier_cluster_arrive_relaxed(TCGEMM_HERE) { simulator::cluster_arrive(false, site); }
inline void barrier_cluster_wait(TCGEMM_HERE) { simulator::cluster_wait(site); }

// One grid runs after the other.
inline void griddepcontrol_launch_dependents() {}
inline void griddepcontrol_wait() {}
inline void cp_async_bulk_prefetch_tensor_2d(const CUtensorMap*, int, int) {}
inline void cp_async_bulk_cluster(uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier,
                                  uint32_t cta, TCGEMM_HERE) {
  simulator::bulk_transfer(to, from, bytes, barrier, cta, site);
}
inline void prefetch_global_l2(const void*) {}
inline void st_release(uint64_t* to, uint64_t value) { *to = value; }
inline uint64_t ld_acquire(const uint64_t* from) { return *from; }
inline float ld_shared_cluster(uint32_t at, uint32_t cta, TCGEMM_HERE) {
  return simulator::load_cluster(at, cta, site);
}
inline void st_shared_v2(uint32_t shared, float x, float y) {
  *static_cast<float2*>(simulator::shared_pointer(shared)) = make_float2(x, y);
}
inline void st_shared(uint32_t shared, float x) {
  *static_cast<float*>(simulator::shared_pointer(shared)) = x;
}
inline void st_shared_v2(uint32_t shared, int32_t x, int32_t y) {
  *static_cast<int2*>(simulator::shared_pointer(shared)) = make_int2(x, y);
}
inline uint32_t ld_shared_u32(uint32_t shared) {
  return *static_cast<const uint32_t*>(simulator::shared_pointer(shared));
}
inline uint4 ld_shared_v4(uint32_t shared) {
  return *static_cast<const uint4*>(simulator::shared_pointer(shared));
}
inline void st_shared_v4(uint32_t shared, uint4 v) {
  *static_cast<uint4*>(simulator::shared_pointer(shared)) = v;
}
inline float max_nan(float x, float y) { return x != x || x > y ? x : y; }
inline float ex2_approx(float x) { return std::exp2(x); }
inline float rcp_approx(float x) { return 1.0f / x; }

enum class Major { K, MN };

inline void wgmma_fence() { simulator::wgmma_fence(); }
inline void wgmma_commit_group(TCGEMM_HERE) { simulator::wgmma_commit(site); }
template <int PENDING>
inline void wgmma_wait_group(TCGEMM_HERE) {
  simulator::wgmma_wait(PENDING, site);
}
template <typename In>
constexpr simulator::Element wgmma_element() {
  return std::is_same_v<In, __half> ? simulator::Element::f16 : simulator::Element::bf16;
}
enum class Mma { s8, u8, e4m3, e5m2, tf32 };

template <Mma MMA, typename Acc, int REGISTERS>
inline void wgmma_kmajor(Acc (&d)[REGISTERS], uint64_t a, uint64_t b, bool accumulate,
                         TCGEMM_HERE) {
  using simulator::Element;
  constexpr Element ELEMENTS[] = {Element::s8, Element::u8, Element::e4m3, Element::e5m2,
                                  Element::tf32};
  simulator::wgmma(ELEMENTS[static_cast<int>(MMA)], 2 * REGISTERS, false, false, d, a, b,
                   accumulate, site);
}
template <int REGISTERS>
inline void wgmma_tf32_registers(float (&d)[REGISTERS], const uint32_t* a, uint64_t b,
                                 bool accumulate, TCGEMM_HERE) {
  simulator::wgmma_registers(2 * REGISTERS, d, a, b, accumulate, site);
}
#define TCGEMM_SIMULATED_WGMMA(N)                                                                   \
  template <typename In, Major A, Major B>                                                         \
  inline void wgmma_m64n##N##k16(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate,       \
                                 TCGEMM_HERE) {                                                    \
    simulator::wgmma(wgmma_element<In>(), N, A == Major::MN, B == Major::MN, d, a, b, accumulate,  \
                     site);                                                                        \
  }
TCGEMM_SIMULATED_WGMMA(16)
TCGEMM_SIMULATED_WGMMA(48)
TCGEMM_SIMULATED_WGMMA(56)
TCGEMM_SIMULATED_WGMMA(64)
TCGEMM_SIMULATED_WGMMA(80)
TCGEMM_SIMULATED_WGMMA(96)
TCGEMM_SIMULATED_WGMMA(112)
TCGEMM_SIMULATED_WGMMA(128)
TCGEMM_SIMULATED_WGMMA(144)
TCGEMM_SIMULATED_WGMMA(160)
TCGEMM_SIMULATED_WGMMA(176)
TCGEMM_SIMULATED_WGMMA(192)
TCGEMM_SIMULATED_WGMMA(208)
TCGEMM_SIMULATED_WGMMA(224)
TCGEMM_SIMULATED_WGMMA(256)
#undef TCGEMM_SIMULATED_WGMMA

}  // namespace tcgemm::sm90
