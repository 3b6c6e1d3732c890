// Products of int8 weights and activations, symmetric with one float32 scale per row and group of 64 or 32 (as
// llama.cpp's Q8_0 has); they accumulate in int32 by VNNI's vpdpbusd, whose first operand is unsigned: weights are
// stored + 128 and each row's group starts from -128 times the sum of its activations.
#pragma once
#include <cmath>

#include "linear.h"
#include "rows.h"

namespace pagefleet {

constexpr int kRowsInt8 = 6;
constexpr int64_t kTaskInt8 = 96;  // rows of one task, a multiple of kRowsInt8

constexpr int64_t group_bytes(int64_t group) { return kColumns * (group + int64_t(sizeof(float))); }

// A block is [groups]: [group / 4][2][16 columns][4 of k], + 128, then 32 float scales.
inline void pack_int8(Pool& pool, Linear& linear, const float* weight) {
  linear.groups = (linear.k + linear.group - 1) / linear.group;
  linear.allocate(linear.groups * group_bytes(linear.group));
  parallel(pool, linear.blocks, [&](int64_t block) {
    linear.rows_of(block, [&](int64_t c, int64_t index) {
      const float* row = weight + index * linear.k;
      for (int64_t g = 0; g < linear.groups; ++g) {
        const int64_t begin = g * linear.group, end = std::min(linear.k, begin + linear.group);
        float most = 0;
        for (int64_t i = begin; i < end; ++i) most = std::max(most, std::fabs(row[i]));
        const float inverse = most > 0 ? 127.0f / most : 0.0f, scale = most / 127.0f;
        uint8_t* packed = linear.block(block) + g * group_bytes(linear.group);
        std::memcpy(packed + linear.group * kColumns + c * sizeof(float), &scale, sizeof(float));
        uint8_t* out = packed + (c / 16) * 64 + (c % 16) * 4;
        for (int64_t i = begin; i < end; ++i)
          out[(i - begin) / 4 * 128 + (i - begin) % 4] = uint8_t(std::lrintf(row[i] * inverse) + 128);
      }
    });
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

template <int R, int G>
void tile_int8(const Linear& linear, const Quantised& x, int64_t row, int64_t block, float* y, int64_t stride,
               Into into, Ahead ahead) {
  const int64_t groups = linear.groups, width = groups * G, part = ahead.bytes / groups;
  const int8_t* values = x.values.data() + row * width;
  const uint8_t* weights = linear.block(block);
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
  for (int r = 0; r < R; ++r) finish(linear, y + r * stride, block, total[r][0], total[r][1], into);
}

template <int G>
void apply_int8(Pool& pool, const Linear& linear, Input input, int64_t rows, float* y, int64_t stride, Into into) {
  static Quantised quantised;  // one caller at a time
  const int64_t groups = linear.groups, width = groups * G;
  int8_t* values = grown(quantised.values, rows * width);
  float* scales = grown(quantised.scales, rows * groups);
  int32_t* corrections = grown(quantised.corrections, rows * groups);
  by_rows(pool, rows, [&](int64_t row) {
    static thread_local Array<float> normed;
    const float* x = input.x + row * linear.k;
    if (input.norm) {
      rms_norm(x, input.norm, grown(normed, linear.k), linear.k, input.epsilon);
      x = normed.data();
    }
    quantise_row<G>(linear, x, values + row * width, scales + row * groups, corrections + row * groups);
  });
  by_tasks(pool, linear, rows, kTaskInt8, [&](int64_t block, int64_t begin, int64_t count, Ahead ahead) {
    tiles<kRowsInt8>(count, [&](auto size, int64_t at) {
      tile_int8<size(), G>(linear, quantised, begin + at, block, y + (begin + at) * stride, stride, into,
                           ahead.share(at, size(), count));
    });
  });
}

}  // namespace pagefleet
