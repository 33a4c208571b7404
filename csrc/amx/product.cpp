// out = left rightᵀ, or out += left rightᵀ, of bfloat16 numbers on the tile unit (AMX), summed in float32.
//
// The ladder: (1) both operands are converted and packed once into whole tiles, so that each load is one kilobyte in a
// row; (2) 2x2 accumulators: four tile loads feed four products; (3) squares of 256 by 256, whose operands stay in the
// second-level cache, claimed by whichever thread is free: each element of out belongs to one block and is summed in
// one order; (4) of a Gram matrix only the blocks that touch the lower triangle; (5) the next block of out is fetched
// meanwhile, a row at each step of the depth.
#include <cpuid.h>
#include <immintrin.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <new>

#include "../kernels.h"
#include "../parallel.h"

namespace flyk {
namespace amx {

namespace {

constexpr int64_t TILE = 16, STEP = 32;           // rows of a tile; numbers in each
constexpr int64_t SIZE = TILE * STEP;             // of a tile
constexpr int64_t PANEL = 2 * TILE, SQUARE = 8;   // rows of a panel; panels along a square

int64_t count(int64_t n, int64_t size) { return (n + size - 1) / size; }

// Memory for tiles, on large pages where there are any: a fault for each 4096 bytes would cost as much as packing.
struct Tiles {
  uint16_t* data = nullptr;
  size_t bytes;

  explicit Tiles(int64_t tiles) : bytes(tiles * SIZE * sizeof(uint16_t)) {
    if (bytes == 0) return;
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    madvise(at, bytes, MADV_HUGEPAGE);
    data = static_cast<uint16_t*>(at);
  }
  ~Tiles() {
    if (bytes != 0) munmap(data, bytes);
  }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

// The first n of sixteen.
__mmask16 first(int64_t n) { return n >= TILE ? 0xffff : static_cast<__mmask16>((1u << std::max<int64_t>(n, 0)) - 1); }

// Sixteen numbers in a row, of which the first n are there and the rest are 0.
__m512 load(const Operand& x, int64_t row, int64_t depth, int64_t n) {
  const int64_t at = row * x.row_stride + depth * x.depth_stride;
  const __mmask16 there = first(n);
  if (x.dtype == DType::f32) return _mm512_maskz_loadu_ps(there, static_cast<const float*>(x.values) + at);
  const __m256i half = _mm256_maskz_loadu_epi16(there, static_cast<const uint16_t*>(x.values) + at);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

__m512 rounded(__m512 v) {
  const auto half = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

// What rounding leaves of a number; nothing of one that is not finite then, where a difference would be NaN.
__m512 rest(__m512 v) {
  const __m512 high = rounded(v), infinity = _mm512_set1_ps(std::numeric_limits<float>::infinity());
  const __mmask16 finite = _mm512_cmp_ps_mask(_mm512_abs_ps(high), infinity, _CMP_LT_OQ);
  return _mm512_maskz_sub_ps(finite, v, high);
}

// An operand as panels of 32 rows: for each 32 of the depth two tiles of 16 rows. A left tile holds for each row its
// 16 pairs of neighbours in depth, a right tile for each such pair its 16 rows: one is the other's transpose.
struct Packed {
  int64_t steps, panels;
  Tiles high, low;

  Packed(const Operand& x, int64_t depth, bool right, bool split)
      : steps(count(depth, STEP)), panels(count(x.rows, PANEL)), high(2 * panels * steps),
        low(split ? 2 * panels * steps : 0) {
    parallel_for(2 * panels, 2, [&](int64_t begin, int64_t end) {
      for (int64_t tile = begin; tile < end; ++tile)
        for (int64_t step = 0; step < steps; ++step) pack(x, depth, right, tile, step);
    });
  }

  int64_t panel(int64_t p) const { return p * steps * 2 * SIZE; }

 private:
  void pack(const Operand& x, int64_t depth, bool right, int64_t tile, int64_t step) {
    const bool by_pairs = x.depth_stride != 1;  // the operand's own order gives the right tile's rows
    const int64_t row = tile * TILE, start = step * STEP, at = panel(tile / 2) + (2 * step + tile % 2) * SIZE;
    for (int64_t i = 0; i < TILE; ++i) {
      __m512 a, b;
      if (by_pairs) {
        const int64_t left = x.rows - row, d = start + 2 * i;
        a = load(x, row, d, d < depth ? left : 0), b = load(x, row, d + 1, d + 1 < depth ? left : 0);
      } else {
        const int64_t left = row + i < x.rows ? depth - start : 0;
        a = load(x, row + i, start, left), b = load(x, row + i, start + TILE, left - TILE);
      }
      put(high.data + at, i, words(a, b, by_pairs), right == by_pairs);
      if (low.bytes) put(low.data + at, i, words(rest(a), rest(b), by_pairs), right == by_pairs);
    }
  }

  // Pairs of neighbours: those of two rows of the depth, or those along a, then b.
  static __m512i words(__m512 a, __m512 b, bool by_pairs) {
    if (!by_pairs) return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));
    const __m512i even = _mm512_castps_si512(rounded(a)), odd = _mm512_castps_si512(rounded(b));
    return _mm512_or_si512(_mm512_srli_epi32(even, 16), odd);
  }

  static void put(uint16_t* tile, int64_t i, __m512i words, bool as_row) {
    if (as_row) return _mm512_store_si512(tile + i * STEP, words);
    const __m512i column = _mm512_setr_epi32(0, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240);
    _mm512_i32scatter_epi32(reinterpret_cast<int32_t*>(tile) + i, column, words, 4);
  }
};

struct Term {
  const uint16_t *left, *right;  // panels
};

// The sum of the terms: a block of 32 by 32. It is summed apart and not on top of what `out` holds, which may be so
// large that each of the many small numbers added to it would lose digits.
void multiply(const Term* terms, int n, int64_t steps, float* sum, const float* next, int64_t stride) {
  constexpr int ROW = STEP * sizeof(uint16_t), SUM_ROW = PANEL * sizeof(float);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int t = 0; t < n; ++t) {
    const uint16_t *a = terms[t].left, *b = terms[t].right;
    for (int64_t s = 0; s < steps; ++s, a += 2 * SIZE, b += 2 * SIZE) {
      _tile_loadd(4, a, ROW);
      _tile_loadd(6, b, ROW);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, b + SIZE, ROW);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, a + SIZE, ROW);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
      if (t == 0 && s < PANEL) {
        _mm_prefetch(next + s * stride, _MM_HINT_T0);
        _mm_prefetch(next + s * stride + TILE, _MM_HINT_T0);
      }
    }
  }
  _tile_stored(0, sum, SUM_ROW);
  _tile_stored(1, sum + TILE, SUM_ROW);
  _tile_stored(2, sum + TILE * PANEL, SUM_ROW);
  _tile_stored(3, sum + TILE * PANEL + TILE, SUM_ROW);
}

struct alignas(64) Shape {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

struct Job {
  const Product& p;
  const Packed &left, &right;

  // Block (i, j); the smaller terms first.
  void block(int64_t i, int64_t j) const {
    const Term high{left.high.data + left.panel(i), right.high.data + right.panel(j)};
    Term terms[] = {high, high, high, high};
    if (p.terms > 1) {
      terms[0].left = terms[2].left = left.low.data + left.panel(i);
      terms[0].right = terms[1].right = right.low.data + right.panel(j);
    }
    const int64_t stride = p.right.rows, columns = stride - j * PANEL, rows = std::min(PANEL, p.left.rows - i * PANEL);
    float* at = p.out + i * PANEL * stride + j * PANEL;
    alignas(64) float sum[PANEL * PANEL];
    multiply(terms + 4 - p.terms, p.terms, left.steps, sum, at + PANEL * stride, stride);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < PANEL; c += TILE) {
        const __mmask16 there = first(columns - c);
        __m512 v = _mm512_load_ps(sum + r * PANEL + c);
        if (p.add) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(there, at + r * stride + c));
        _mm512_mask_storeu_ps(at + r * stride + c, there, v);
      }
  }

  void square(int64_t top, int64_t side) const {
    for (int64_t j = side; j < std::min(side + SQUARE, right.panels); ++j)
      for (int64_t i = p.lower ? std::max(top, j) : top; i < std::min(top + SQUARE, left.panels); ++i) block(i, j);
  }
};

}  // namespace

// Both are asked of the processor, then of the system, which must widen the state that it keeps of each thread.
bool supported() {
  unsigned a, b, c, d;
  constexpr unsigned BF16 = 1u << 22, TILES = 1u << 24;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & BF16) == 0 || (d & TILES) == 0) return false;
  if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || (a & (1u << 5)) == 0) return false;  // avx512_bf16
  constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
  return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

void product(const Product& p) {
  const Packed left(p.left, p.depth, false, p.terms > 1), right(p.right, p.depth, true, p.terms > 1);
  const Job job{p, left, right};
  // The lowest squares first: those of a triangle are the ones without a gap.
  const int64_t high = count(left.panels, SQUARE), wide = count(right.panels, SQUARE);
  parallel_for(high * wide, 1, [&](int64_t begin, int64_t end) {
    const Shape shape;
    _tile_loadconfig(&shape);
    for (int64_t s = begin; s < end; ++s) job.square((high - 1 - s / wide) * SQUARE, s % wide * SQUARE);
    _tile_release();
  });
}

}  // namespace amx
}  // namespace flyk
