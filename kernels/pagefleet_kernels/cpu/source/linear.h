// y [rows, n] (+)= x [rows, k] w^T + bias with weights packed once: float32, or int8 in groups along k.
//
// int8: weights and activations are symmetric int8 with one float32 scale per row and group of 64 or 32 (as
// llama.cpp's Q8_0 has); products accumulate in int32 by VNNI's vpdpbusd, whose first operand is unsigned: weights are
// stored + 128 and each row's group starts from -128 times the sum of its activations.
// Floor: packed bytes (k * n * 17/16, 9/8 with groups of 32, or 4 k * n) read once per 96 rows; rows * k * n multiply-adds.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>

#include "memory.h"
#include "pool.h"
#include "rows.h"
#include "vector.h"

namespace pagefleet {

constexpr int64_t kColumns = 32;    // of one packed block: two registers
constexpr int64_t kTaskRows = 96;   // of one task: a multiple of both kernels' rows
constexpr int kRowsInt8 = 6, kRowsFloat = 12;
constexpr int64_t kAheadRows = 8;    // of float32: with fewer, memory is read as fast as it can be anyway
constexpr int64_t kAheadSteps = 16;  // of k between two fetches

constexpr int64_t group_bytes(int64_t group) { return kColumns * (group + int64_t(sizeof(float))); }

struct Linear {
  int64_t n, k, blocks;
  int64_t group, groups;          // elements of k that share a scale, 64 or 32, and how many of these; 0: float32
  Array<uint8_t> weights;         // [blocks][groups]: [group / 4][2][16 columns][4 of k], + 128, then 32 float scales
  Array<float> floats;            // [blocks][k][32]
  Array<float> bias;              // [blocks * 32], or empty

  int64_t block_bytes() const { return group ? groups * group_bytes(group) : k * kColumns * int64_t(sizeof(float)); }

  Ahead ahead(int64_t block) const {
    const void* begin = group ? static_cast<const void*>(weights.data()) : floats.data();
    return {static_cast<const char*>(begin) + block * block_bytes(), block_bytes()};
  }
};

inline void pack(Pool& pool, Linear& linear, const float* weight) {
  const int64_t n = linear.n, k = linear.k;
  if (linear.group) {
    linear.weights.assign(linear.blocks * linear.block_bytes(), 0);
  } else {
    linear.floats.assign(linear.blocks * k * kColumns, 0.0f);
  }
  parallel(pool, linear.blocks, [&](int64_t block) {
    for (int64_t c = 0; c < kColumns && block * kColumns + c < n; ++c) {
      const float* row = weight + (block * kColumns + c) * k;
      if (!linear.group) {
        for (int64_t i = 0; i < k; ++i) linear.floats[(block * k + i) * kColumns + c] = row[i];
        continue;
      }
      for (int64_t g = 0; g < linear.groups; ++g) {
        const int64_t begin = g * linear.group, end = std::min(k, begin + linear.group);
        float most = 0;
        for (int64_t i = begin; i < end; ++i) most = std::max(most, std::fabs(row[i]));
        const float inverse = most > 0 ? 127.0f / most : 0.0f, scale = most / 127.0f;
        uint8_t* packed = linear.weights.data() + (block * linear.groups + g) * group_bytes(linear.group);
        std::memcpy(packed + linear.group * kColumns + c * sizeof(float), &scale, sizeof(float));
        uint8_t* out = packed + (c / 16) * 64 + (c % 16) * 4;
        for (int64_t i = begin; i < end; ++i)
          out[(i - begin) / 4 * 128 + (i - begin) % 4] = uint8_t(std::lrintf(row[i] * inverse) + 128);
      }
    }
  });
}

struct Quantised {
  Array<int8_t> values;        // [rows][groups * group]
  Array<float> scales;         // [rows][groups]
  Array<int32_t> corrections;  // [rows][groups]
};

template <int G>
void quantise_row(const Linear& linear, const float* x, int8_t* values, float* scales, int32_t* corrections) {
  const __m512 sign = _mm512_set1_ps(-0.0f);
  for (int64_t g = 0; g < linear.groups; ++g) {
    __m512 part[G / 16], most = _mm512_setzero_ps();
    for (int i = 0; i < G / 16; ++i) {
      const int64_t at = g * G + i * 16;
      part[i] = _mm512_maskz_loadu_ps(lanes(std::max<int64_t>(0, linear.k - at)), x + at);
      most = _mm512_max_ps(most, _mm512_andnot_ps(sign, part[i]));
    }
    const float top = _mm512_reduce_max_ps(most);
    scales[g] = top / 127.0f;
    const __m512 inverse = _mm512_set1_ps(top > 0 ? 127.0f / top : 0.0f);
    __m512i sum = _mm512_setzero_si512();
    for (int i = 0; i < G / 16; ++i) {
      const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(part[i], inverse));
      sum = _mm512_add_epi32(sum, whole);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(values + g * G + i * 16), _mm512_cvtepi32_epi8(whole));
    }
    corrections[g] = -128 * _mm512_reduce_add_epi32(sum);
  }
}

inline void finish(const Linear& linear, float* y, int64_t block, int half, __m512 value, bool accumulate) {
  const int64_t column = block * kColumns + half * 16;
  const __mmask16 mask = lanes(std::max<int64_t>(0, linear.n - column));
  if (!linear.bias.empty()) value = _mm512_add_ps(value, _mm512_loadu_ps(linear.bias.data() + column));
  if (accumulate) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, y + column));
  _mm512_mask_storeu_ps(y + column, mask, value);
}

template <int R, int G>
void tile_int8(const Linear& linear, const Quantised& x, int64_t row, int64_t block, float* y, bool accumulate, Ahead ahead) {
  const int64_t groups = linear.groups, width = groups * G, part = ahead.bytes / groups;
  const int8_t* values = x.values.data() + row * width;
  const uint8_t* weights = linear.weights.data() + block * linear.block_bytes();
  __m512 total[R][2];
  for (int r = 0; r < R; ++r) total[r][0] = total[r][1] = _mm512_setzero_ps();
  for (int64_t g = 0; g < groups; ++g, weights += group_bytes(G)) {
    ahead.fetch(part);
    __m512i sum[R][2];
    for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = _mm512_set1_epi32(x.corrections[(row + r) * groups + g]);
#pragma GCC unroll 16  // as a loop GCC moves every sum to another register and back
    for (int i = 0; i < G / 4; ++i) {
      const __m512i low = _mm512_loadu_si512(weights + i * 128), high = _mm512_loadu_si512(weights + i * 128 + 64);
      for (int r = 0; r < R; ++r) {
        int32_t four;
        std::memcpy(&four, values + r * width + g * G + i * 4, 4);
        const __m512i spread = _mm512_set1_epi32(four);
        sum[r][0] = _mm512_dpbusd_epi32(sum[r][0], low, spread);
        sum[r][1] = _mm512_dpbusd_epi32(sum[r][1], high, spread);
      }
    }
    const uint8_t* scales = weights + G * kColumns;
    const __m512 low = _mm512_loadu_ps(scales), high = _mm512_loadu_ps(scales + kLine);
    for (int r = 0; r < R; ++r) {
      const __m512 scale = _mm512_set1_ps(x.scales[(row + r) * groups + g]);
      total[r][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r][0]), _mm512_mul_ps(scale, low), total[r][0]);
      total[r][1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r][1]), _mm512_mul_ps(scale, high), total[r][1]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int half = 0; half < 2; ++half) finish(linear, y + r * linear.n, block, half, total[r][half], accumulate);
}

template <int R>
void tile_float(const Linear& linear, const float* x, int64_t block, float* y, bool accumulate, Ahead ahead) {
  const float* weights = linear.floats.data() + block * linear.k * kColumns;
  const int64_t part = ahead.bytes * kAheadSteps / linear.k;
  __m512 total[R][2];
  for (int r = 0; r < R; ++r) total[r][0] = total[r][1] = _mm512_setzero_ps();
  for (int64_t i = 0; i < linear.k; ++i, weights += kColumns) {
    if (i % kAheadSteps == 0) ahead.fetch(part);
    const __m512 low = _mm512_loadu_ps(weights), high = _mm512_loadu_ps(weights + 16);
    for (int r = 0; r < R; ++r) {
      const __m512 value = _mm512_set1_ps(x[r * linear.k + i]);
      total[r][0] = _mm512_fmadd_ps(value, low, total[r][0]);
      total[r][1] = _mm512_fmadd_ps(value, high, total[r][1]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int half = 0; half < 2; ++half) finish(linear, y + r * linear.n, block, half, total[r][half], accumulate);
}

// Calls body(size, first row) over `rows` rows: size() is MOST, and for the last call what is left.
template <int MOST, typename Body>
void tiles(int64_t rows, Body&& body) {
  int64_t row = 0;
  for (; row + MOST <= rows; row += MOST) body(std::integral_constant<int, MOST>(), row);
  if constexpr (MOST > 1) {
    if (row < rows) tiles<MOST - 1>(rows - row, [&](auto size, int64_t at) { body(size, row + at); });
  }
}

// Calls body(block, first row, rows, ahead) over all blocks and rows, at most kTaskRows of them at a time. `ahead` is the
// block that this thread will probably have next, when that is another one.
template <typename Body>
void by_tasks(Pool& pool, const Linear& linear, int64_t rows, Body&& body) {
  const int64_t parts = (rows + kTaskRows - 1) / kTaskRows;
  parallel(pool, linear.blocks * parts, [&](int64_t task) {
    const int64_t begin = task % parts * kTaskRows, block = task / parts;
    const int64_t next = std::min(linear.blocks - 1, (task + pool.threads()) / parts);
    body(block, begin, std::min(kTaskRows, rows - begin), next == block ? Ahead{} : linear.ahead(next));
  });
}

template <int G>
void apply_int8(Pool& pool, const Linear& linear, const float* x, int64_t rows, float* y, bool accumulate) {
  static Quantised quantised;  // one caller at a time
  const int64_t groups = linear.groups, width = groups * G;
  quantised.values.resize(std::max<size_t>(quantised.values.size(), rows * width));
  quantised.scales.resize(std::max<size_t>(quantised.scales.size(), rows * groups));
  quantised.corrections.resize(std::max<size_t>(quantised.corrections.size(), rows * groups));
  by_rows(pool, rows, [&](int64_t row) {
    quantise_row<G>(linear, x + row * linear.k, quantised.values.data() + row * width,
                    quantised.scales.data() + row * groups, quantised.corrections.data() + row * groups);
  });
  by_tasks(pool, linear, rows, [&](int64_t block, int64_t begin, int64_t count, Ahead ahead) {
    tiles<kRowsInt8>(count, [&](auto size, int64_t at) {
      tile_int8<size(), G>(linear, quantised, begin + at, block, y + (begin + at) * linear.n, accumulate,
                           ahead.share(at, size(), count));
    });
  });
}

inline void apply(Pool& pool, const Linear& linear, const float* x, int64_t rows, float* y, bool accumulate) {
  if (linear.group == 64) return apply_int8<64>(pool, linear, x, rows, y, accumulate);
  if (linear.group == 32) return apply_int8<32>(pool, linear, x, rows, y, accumulate);
  by_tasks(pool, linear, rows, [&](int64_t block, int64_t begin, int64_t count, Ahead ahead) {
    if (rows < kAheadRows) ahead = {};
    tiles<kRowsFloat>(count, [&](auto size, int64_t at) {
      const int64_t row = begin + at;
      tile_float<size()>(linear, x + row * linear.k, block, y + row * linear.n, accumulate,
                         ahead.share(at, size(), count));
    });
  });
}

}  // namespace pagefleet
