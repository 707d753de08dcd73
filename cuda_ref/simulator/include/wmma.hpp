// nvcuda::wmma on a CPU: all type pairs and shapes.
#pragma once

#include "runtime.hpp"

namespace nvcuda::wmma {

struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
namespace precision {
struct tf32 {};
}  // namespace precision

namespace detail {
using tcgemm::simulator::Element;
using tcgemm::simulator::FragmentKind;
using tcgemm::simulator::Use;

template <typename T>
struct Traits;
#define TCGEMM_ELEMENT(T, STORED, NAME)            \
  template <>                                      \
  struct Traits<T> {                               \
    using Stored = STORED;                         \
    static constexpr Element element = Element::NAME; \
  };
TCGEMM_ELEMENT(__half, __half, f16)
TCGEMM_ELEMENT(__nv_bfloat16, __nv_bfloat16, bf16)
TCGEMM_ELEMENT(precision::tf32, float, tf32)
TCGEMM_ELEMENT(float, float, f32)
TCGEMM_ELEMENT(double, double, f64)
TCGEMM_ELEMENT(signed char, signed char, s8)
TCGEMM_ELEMENT(char, signed char, s8)
TCGEMM_ELEMENT(unsigned char, unsigned char, u8)
TCGEMM_ELEMENT(int, int, s32)
#undef TCGEMM_ELEMENT

template <typename Role>
constexpr Use use_of() {
  if (std::is_same_v<Role, matrix_a>) return Use::a;
  return std::is_same_v<Role, matrix_b> ? Use::b : Use::accumulator;
}

constexpr bool shape_exists(Element in, int m, int n, int k) {
  switch (in) {
    case Element::tf32: return m == 16 && n == 16 && k == 8;
    case Element::f64: return m == 8 && n == 8 && k == 4;
    default:
      return k == 16 && ((m == 16 && n == 16) || (m == 32 && n == 8) || (m == 8 && n == 32));
  }
}

constexpr bool pair_exists(Element in, Element out) {
  switch (in) {
    case Element::f16: return out == Element::f16 || out == Element::f32;
    case Element::bf16:
    case Element::tf32: return out == Element::f32;
    case Element::f64: return out == Element::f64;
    default: return out == Element::s32;
  }
}
}  // namespace detail

template <typename Role, int m, int n, int k, typename T, typename Layout = void>
struct fragment {
  using element_type = typename detail::Traits<T>::Stored;
  using storage_element_type = element_type;
  static constexpr detail::FragmentKind kind{detail::use_of<Role>(), m, n, k,
                                             detail::Traits<T>::element};
  static constexpr int num_elements =
      (kind.use == detail::Use::a ? m * k : kind.use == detail::Use::b ? k * n : m * n) / 32;
  static constexpr int num_storage_elements = num_elements;
  static_assert(kind.use == detail::Use::accumulator ||
                    detail::shape_exists(kind.element, m, n, k),
                "WMMA has no fragment of this shape and type");
  static_assert(kind.use == detail::Use::accumulator || !std::is_void_v<Layout>,
                "matrix_a and matrix_b fragments name row_major or col_major");
  element_type x[num_elements];
};

template <typename Role, int m, int n, int k, typename T, typename L, typename V>
inline void fill_fragment(fragment<Role, m, n, k, T, L>& f, V value) {
  for (auto& element : f.x) element = static_cast<typename std::decay_t<decltype(element)>>(value);
}

template <typename Role, int m, int n, int k, typename T, typename L, typename P>
inline void load_matrix_sync(fragment<Role, m, n, k, T, L>& f, const P* matrix, unsigned ld,
                             TCGEMM_HERE) {
  static_assert(!std::is_void_v<L>, "an accumulator is loaded with its layout as fourth argument");
  static_assert(sizeof(P) == sizeof(f.x[0]), "matrix and fragment element types differ");
  tcgemm::simulator::load_matrix(f.kind, f.x, matrix, ld, std::is_same_v<L, col_major>, site);
}

template <int m, int n, int k, typename T, typename P>
inline void load_matrix_sync(fragment<accumulator, m, n, k, T>& f, const P* matrix, unsigned ld,
                             layout_t layout, TCGEMM_HERE) {
  static_assert(sizeof(P) == sizeof(f.x[0]), "matrix and fragment element types differ");
  tcgemm::simulator::load_matrix(f.kind, f.x, matrix, ld, layout == mem_col_major, site);
}

template <int m, int n, int k, typename T, typename P>
inline void store_matrix_sync(P* matrix, const fragment<accumulator, m, n, k, T>& f, unsigned ld,
                              layout_t layout, TCGEMM_HERE) {
  static_assert(sizeof(P) == sizeof(f.x[0]), "matrix and fragment element types differ");
  tcgemm::simulator::store_matrix(f.kind, f.x, matrix, ld, layout == mem_col_major, site);
}

template <int m, int n, int k, typename In, typename LA, typename LB, typename Out, typename Acc>
inline void mma_sync(fragment<accumulator, m, n, k, Out>& d,
                     const fragment<matrix_a, m, n, k, In, LA>& a,
                     const fragment<matrix_b, m, n, k, In, LB>& b,
                     const fragment<accumulator, m, n, k, Acc>& c, TCGEMM_HERE) {
  static_assert(detail::pair_exists(a.kind.element, d.kind.element) &&
                    detail::pair_exists(a.kind.element, c.kind.element),
                "WMMA has no instruction for this pair of types");
  tcgemm::simulator::mma(a.kind, c.kind, d.kind.element, d.x, a.x, b.x, c.x, site);
}

inline float __float_to_tf32(float f) { return tcgemm::simulator::tf32_of_float(f); }

}  // namespace nvcuda::wmma
