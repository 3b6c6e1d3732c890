// Products of int8 weights and activations, symmetric with one float32 scale per row and group of 64 or 32 (as
// llama.cpp's Q8_0 has); they accumulate in int32. kDeep of k are multiplied in one lane. Where the instruction's first
// operand is unsigned, weights are stored + kShift, and each row's group starts from -kShift times its activations' sum.
#pragma once
#include <cmath>

#include "linear.h"
#include "rows.h"

namespace pagefleet {

constexpr int64_t kTaskInt8 = 96;  // rows of one task, a multiple of kRowsInt8

constexpr int64_t group_bytes(int64_t group) { return kColumns * (group + int64_t(sizeof(float))); }

// A block is [groups]: [group / kDeep][2][16 columns][kDeep of k], + kShift, then 32 float scales.
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
        uint8_t* out = packed + c * kDeep;
        for (int64_t i = begin; i < end; ++i)
          out[(i - begin) / kDeep * kDeep * kColumns + (i - begin) % kDeep] = uint8_t(std::lrintf(row[i] * inverse) + kShift);
      }
    });
  });
}

struct Quantised {
  Array<Small> values;         // [rows][groups * group]
  Array<float> scales;         // [rows][groups]
  Array<int32_t> corrections;  // [rows][groups]
};

template <int G>
void quantise_row(const Linear& linear, const float* x, Small* values, float* scales, int32_t* corrections) {
  for (int64_t g = 0; g < linear.groups; ++g) {
    Floats part[G / 16], most = spread(0.0f);
    for (int i = 0; i < G / 16; ++i) {
      const int64_t at = g * G + i * 16;
      part[i] = load(x + at, std::max<int64_t>(0, linear.k - at));
      most = max(most, absolute(part[i]));
    }
    const float top = reduce_max(most);
    scales[g] = top / 127.0f;
    const Floats inverse = spread(top > 0 ? 127.0f / top : 0.0f);
    Ints sum = spread(0);
    for (int i = 0; i < G / 16; ++i) {
      const Ints near = to_ints(part[i] * inverse);
      sum = plus(sum, near);
      store(values + g * G + i * 16, near);
    }
    corrections[g] = -kShift * reduce_add(sum);
  }
}

template <int R, int G>
void tile_int8(const Linear& linear, const Quantised& x, int64_t row, int64_t block, float* y, int64_t stride,
               Into into, Ahead ahead) {
  const int64_t groups = linear.groups, width = groups * G, part = ahead.bytes / groups;
  const Small* values = x.values.data() + row * width;
  constexpr int H = halves(R);
  Floats total[R][2];
  for (int half = 0; half < 2; half += H) {
    const uint8_t* weights = linear.block(block);
    for (int r = 0; r < R; ++r)
      for (int h = 0; h < H; ++h) total[r][half + h] = spread(0.0f);
    for (int64_t g = 0; g < groups; ++g, weights += group_bytes(G)) {
      if (half == 0) ahead.fetch(part);
      Ints sum[R][H];
      for (int r = 0; r < R; ++r)
        for (int h = 0; h < H; ++h) sum[r][h] = spread(kShift ? x.corrections[(row + r) * groups + g] : 0);
#pragma GCC unroll kUnrollInt8
      for (int i = 0; i < G / kDeep; ++i) {
        Weights weight[H];
        for (int h = 0; h < H; ++h) weight[h] = load_weights(weights + (i * 2 + half + h) * 16 * kDeep);
        for (int r = 0; r < R; ++r) {
          int32_t deep;
          std::memcpy(&deep, values + r * width + g * G + i * kDeep, sizeof(deep));
          const Ints activations = spread(deep);
          for (int h = 0; h < H; ++h) sum[r][h] = dot(sum[r][h], weight[h], activations);
        }
      }
      const float* scales = reinterpret_cast<const float*>(weights + G * kColumns) + half * 16;
      Floats part_scale[H];
      for (int h = 0; h < H; ++h) part_scale[h] = load(scales + h * 16);
      for (int r = 0; r < R; ++r) {
        const Floats scale = spread(x.scales[(row + r) * groups + g]);
        for (int h = 0; h < H; ++h)
          total[r][half + h] = fmadd(to_floats(sum[r][h]), scale * part_scale[h], total[r][half + h]);
      }
    }
  }
  for (int r = 0; r < R; ++r) finish(linear, y + r * stride, block, total[r][0], total[r][1], into);
}

template <int G>
void apply_int8(Pool& pool, const Linear& linear, Input input, int64_t rows, float* y, int64_t stride, Into into) {
  static Quantised quantised;  // one caller at a time
  const int64_t groups = linear.groups, width = groups * G;
  Small* values = grown(quantised.values, rows * width);
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
