// WMMA fragments, mma.sync and ldmatrix: where each lane's elements lie, and the product.
#include "internal.hpp"

namespace tcgemm::simulator {

int element_bytes(Element element) {
  switch (element) {
    case Element::f16:
    case Element::bf16: return 2;
    case Element::f64: return 8;
    case Element::s8:
    case Element::u8:
    case Element::e4m3:
    case Element::e5m2: return 1;
    default: return 4;
  }
}

int fragment_rows(const FragmentKind& kind) { return kind.use == Use::b ? kind.k : kind.m; }
int fragment_cols(const FragmentKind& kind) { return kind.use == Use::a ? kind.k : kind.n; }

namespace {

// Where element e of lane l lies in its matrix.
struct Map {
  int count = 0;
  uint8_t row[32][32], col[32][32];
};

// 8 x 8 parts, down the columns of parts; in a part, lane l holds two neighbours along the row
// (A, accumulator) or the column (B) of l / 4. This is the accumulator of mma.sync.m16n8. float64
// has 8 x 4 parts with one element a lane.
void fill(Map& map, const FragmentKind& kind) {
  const int rows = fragment_rows(kind), cols = fragment_cols(kind);
  map.count = rows * cols / 32;
  for (int l = 0; l < 32; ++l) {
    for (int e = 0; e < map.count; ++e) {
      int major, minor;  // along A's or C's rows and columns; exchanged for B
      const int height = kind.use == Use::b ? cols : rows, width = kind.use == Use::b ? rows : cols;
      if (width == 4) {
        major = l / 4;
        minor = l % 4;
      } else {
        const int part = e / 2, parts_down = height / 8;
        major = part % parts_down * 8 + l / 4;
        minor = part / parts_down * 8 + l % 4 * 2 + e % 2;
      }
      map.row[l][e] = static_cast<uint8_t>(kind.use == Use::b ? minor : major);
      map.col[l][e] = static_cast<uint8_t>(kind.use == Use::b ? major : minor);
    }
  }
}

const Map& map_of(const FragmentKind& kind) {
  static Map maps[3][5];
  const int shape = kind.k == 4 ? 4 : kind.k == 8 ? 3 : kind.m == 16 ? 0 : kind.m == 32 ? 1 : 2;
  Map& map = maps[static_cast<int>(kind.use)][shape];
  if (map.count == 0) fill(map, kind);
  return map;
}

template <typename T>
void move(const MatrixArguments& arguments, int lane, bool store) {
  const Map& map = map_of(arguments.kind);
  T* fragment = static_cast<T*>(arguments.fragment);
  T* matrix = reinterpret_cast<T*>(arguments.matrix);
  const int64_t ld = arguments.ld;
  for (int e = 0; e < map.count; ++e) {
    const int64_t row = map.row[lane][e], col = map.col[lane][e];
    T* at = matrix + (arguments.column ? col * ld + row : row * ld + col);
    if (store)
      std::memcpy(at, &fragment[e], sizeof(T));
    else
      std::memcpy(&fragment[e], at, sizeof(T));
  }
}

template <typename Sum>
Sum value_of(Element element, const void* elements, int index) {
  switch (element) {
    case Element::f16: return Sum(float_of_half(static_cast<const uint16_t*>(elements)[index]));
    case Element::bf16:
      return Sum(float_of_bfloat16(static_cast<const uint16_t*>(elements)[index]));
    case Element::tf32:  // the hardware reads the upper 19 bits
      return Sum(bits_as<float>(static_cast<const uint32_t*>(elements)[index] & 0xffffe000));
    case Element::f32: return Sum(static_cast<const float*>(elements)[index]);
    case Element::f64: return Sum(static_cast<const double*>(elements)[index]);
    case Element::s8: return Sum(int32_t(static_cast<const int8_t*>(elements)[index]));
    case Element::u8: return Sum(int32_t(static_cast<const uint8_t*>(elements)[index]));
    case Element::s32: return Sum(static_cast<const int32_t*>(elements)[index]);
    case Element::e4m3: return Sum(float_of_fp8<3>(static_cast<const uint8_t*>(elements)[index]));
    case Element::e5m2: return Sum(float_of_fp8<2>(static_cast<const uint8_t*>(elements)[index]));
  }
  return Sum();
}

template <typename Sum>
void put(Element element, void* elements, int index, Sum value) {
  switch (element) {
    case Element::f16:
      static_cast<uint16_t*>(elements)[index] = half_of_float(static_cast<float>(value));
      break;
    case Element::f32: static_cast<float*>(elements)[index] = static_cast<float>(value); break;
    case Element::f64: static_cast<double*>(elements)[index] = static_cast<double>(value); break;
    default: static_cast<uint32_t*>(elements)[index] = static_cast<uint32_t>(value);
  }
}

// The element type is known before the loop over elements, not inside it.
template <Element element, typename Sum>
void gather_as(Sum* matrix, const Map& map, int cols, const void* const* fragments) {
  for (int l = 0; l < 32; ++l)
    for (int e = 0; e < map.count; ++e)
      matrix[map.row[l][e] * cols + map.col[l][e]] = value_of<Sum>(element, fragments[l], e);
}

template <typename Sum>
void gather(Sum* matrix, const FragmentKind& kind, const void* const* fragments) {
  const Map& map = map_of(kind);
  const int cols = fragment_cols(kind);
  switch (kind.element) {
    case Element::f16: gather_as<Element::f16>(matrix, map, cols, fragments); break;
    case Element::bf16: gather_as<Element::bf16>(matrix, map, cols, fragments); break;
    case Element::tf32: gather_as<Element::tf32>(matrix, map, cols, fragments); break;
    case Element::f32: gather_as<Element::f32>(matrix, map, cols, fragments); break;
    case Element::f64: gather_as<Element::f64>(matrix, map, cols, fragments); break;
    case Element::s8: gather_as<Element::s8>(matrix, map, cols, fragments); break;
    case Element::u8: gather_as<Element::u8>(matrix, map, cols, fragments); break;
    default: gather_as<Element::s32>(matrix, map, cols, fragments); break;
  }
}

template <typename Sum, int n>
void accumulate(Sum* c, const Sum* a, const Sum* b, int m, int k) {
  for (int i = 0; i < m; ++i) {
    Sum row[n];
    for (int j = 0; j < n; ++j) row[j] = c[i * n + j];
    for (int p = 0; p < k; ++p)
      for (int j = 0; j < n; ++j) row[j] += a[i * k + p] * b[p * n + j];
    for (int j = 0; j < n; ++j) c[i * n + j] = row[j];
  }
}

template <typename Sum>
void multiply_as(const Thread* lanes) {
  const void *a[32], *b[32], *c[32];
  for (int l = 0; l < 32; ++l) {
    const auto& arguments = *static_cast<const MmaArguments*>(lanes[l].arguments);
    a[l] = arguments.a;
    b[l] = arguments.b;
    c[l] = arguments.c;
  }
  const auto& first = *static_cast<const MmaArguments*>(lanes[0].arguments);
  FragmentKind a_kind = first.a_kind, b_kind = a_kind;
  b_kind.use = Use::b;
  alignas(64) Sum am[32 * 16], bm[16 * 32], cm[32 * 32];
  gather(am, a_kind, a);
  gather(bm, b_kind, b);
  gather(cm, first.accumulator_kind, c);
  switch (a_kind.n) {
    case 8: accumulate<Sum, 8>(cm, am, bm, a_kind.m, a_kind.k); break;
    case 16: accumulate<Sum, 16>(cm, am, bm, a_kind.m, a_kind.k); break;
    default: accumulate<Sum, 32>(cm, am, bm, a_kind.m, a_kind.k); break;
  }
  const Map& map = map_of(first.accumulator_kind);
  for (int l = 0; l < 32; ++l) {
    const auto& arguments = *static_cast<const MmaArguments*>(lanes[l].arguments);
    for (int e = 0; e < map.count; ++e)
      put(arguments.out, arguments.d, e, cm[map.row[l][e] * a_kind.n + map.col[l][e]]);
  }
  if constexpr (OBSERVE)
    observe::count_mma(a_kind.m, a_kind.n, a_kind.k, a_kind.element, first.out, 1);
}

template <typename Sum>
void multiply_ptx_as(const Thread* lanes) {
  const auto& first = *static_cast<const MmaPtxArguments*>(lanes[0].arguments);
  const int bytes = std::max(4, element_bytes(first.in));  // of a register; of two for float64
  const int k = first.k, per_register = bytes / element_bytes(first.in);
  const int steps = k / (4 * per_register);  // registers along k
  Sum a[16 * 64] = {}, b[64 * 8] = {}, c[16 * 8];
  for (int l = 0; l < 32; ++l) {
    const auto& g = *static_cast<const MmaPtxArguments*>(lanes[l].arguments);
    for (int r = 0; r < 2 * steps; ++r)
      for (int e = 0; e < per_register; ++e)
        a[(l / 4 + r % 2 * 8) * k + (r / 2 * 4 + l % 4) * per_register + e] =
            value_of<Sum>(g.in, static_cast<const char*>(g.a) + bytes * r, e);
    for (int r = 0; r < steps; ++r)
      for (int e = 0; e < per_register; ++e)
        b[((r * 4 + l % 4) * per_register + e) * 8 + l / 4] =
            value_of<Sum>(g.b_in, static_cast<const char*>(g.b) + bytes * r, e);
    for (int e = 0; e < 4; ++e)
      c[(l / 4 + e / 2 * 8) * 8 + l % 4 * 2 + e % 2] = value_of<Sum>(g.accumulator, g.c, e);
  }
  accumulate<Sum, 8>(c, a, b, 16, k);
  for (int l = 0; l < 32; ++l) {
    const auto& g = *static_cast<const MmaPtxArguments*>(lanes[l].arguments);
    for (int e = 0; e < 4; ++e)
      put(g.accumulator, g.d, e, c[(l / 4 + e / 2 * 8) * 8 + l % 4 * 2 + e % 2]);
  }
  if constexpr (OBSERVE) observe::count_mma(16, 8, k, first.in, first.accumulator, 0);
}

}  // namespace

void element_position(const FragmentKind& kind, int lane, int element, int* row, int* col) {
  const Map& map = map_of(kind);
  *row = map.row[lane][element];
  *col = map.col[lane][element];
}

void move_fragment(const MatrixArguments& arguments, int lane, bool store) {
  switch (element_bytes(arguments.kind.element)) {
    case 1: move<uint8_t>(arguments, lane, store); break;
    case 2: move<uint16_t>(arguments, lane, store); break;
    case 4: move<uint32_t>(arguments, lane, store); break;
    default: move<uint64_t>(arguments, lane, store); break;
  }
}

// float32 accumulators sum in float32 in the order of k; float16 ones are rounded once per
// instruction; integers wrap modulo 2^32.
void multiply(const Thread* lanes) {
  switch (static_cast<const MmaArguments*>(lanes[0].arguments)->a_kind.element) {
    case Element::f64: multiply_as<double>(lanes); break;
    case Element::s8:
    case Element::u8: multiply_as<uint32_t>(lanes); break;
    default: multiply_as<float>(lanes); break;
  }
}

void multiply_ptx(const Thread* lanes) {
  switch (static_cast<const MmaPtxArguments*>(lanes[0].arguments)->in) {
    case Element::s8:
    case Element::u8: multiply_ptx_as<uint32_t>(lanes); break;
    case Element::f64: multiply_ptx_as<double>(lanes); break;
    default: multiply_ptx_as<float>(lanes); break;
  }
}

// Matrix i is the rows whose addresses lanes 8 i to 8 i + 7 gave; lane l receives elements 2 (l % 4)
// and the next of row l / 4, or of column l / 4 where transposed.
void exchange_ldmatrix(const Thread* lanes) {
  uint32_t received[32][4];
  const auto& first = *static_cast<const LdmatrixArguments*>(lanes[0].arguments);
  for (int i = 0; i < first.count; ++i) {
    uint16_t matrix[8][8];
    for (int r = 0; r < 8; ++r)
      std::memcpy(matrix[r],
                  static_cast<const LdmatrixArguments*>(lanes[8 * i + r].arguments)->row, 16);
    for (int l = 0; l < 32; ++l) {
      const int major = l / 4, minor = l % 4 * 2;
      const uint16_t low = first.transpose ? matrix[minor][major] : matrix[major][minor];
      const uint16_t high = first.transpose ? matrix[minor + 1][major] : matrix[major][minor + 1];
      received[l][i] = low | uint32_t(high) << 16;
    }
  }
  for (int l = 0; l < 32; ++l)
    std::memcpy(static_cast<const LdmatrixArguments*>(lanes[l].arguments)->registers, received[l],
                4 * first.count);
}

}  // namespace tcgemm::simulator
