// Products of int8 activations, quantised for each row and group of 64 or 32 at run time, and weights of one of two forms.
// They accumulate in int32; kDeep of k are multiplied in one lane.
//
// int8, symmetric with one float32 scale per row and group (as llama.cpp's Q8_0 has). Where the instruction's first operand
// is unsigned, weights are stored + kShift, and each row's group starts from -kShift times its activations' sum.
//
// Codes of four bits as their file has them, with a scale and an offset per row and group of 32 (as Q4_1 has): the sum of
// (scale * code + offset) * x is scale * the codes' integer sum + offset * the sum of x. No weight is rounded.
#pragma once
#include <cmath>

#include "linear.h"
#include "rows.h"

namespace pagefleet {

constexpr int64_t kTaskInt8 = 96;  // rows of one task, a multiple of kRowsInt8
constexpr int64_t kCodesGroup = 32, kMaxGroup = 64;
constexpr int64_t kRegister = 16 * kDeep;  // bytes of the weights of sixteen columns

constexpr int64_t group_bytes(int64_t group) { return kColumns * (group + int64_t(sizeof(float))); }

// float32 of `count` stored weights.
inline void widen(const float* from, int64_t count, float* out) { std::memcpy(out, from, size_t(count) * sizeof(float)); }
inline void widen(const Bfloat* from, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = uint32_t(from[i].bits) << 16;
    std::memcpy(out + i, &bits, sizeof(bits));
  }
}
inline void widen(const Half* from, int64_t count, float* out) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) store(out + i, load(from + i));
  Half rest[16] = {};
  std::memcpy(rest, from + i, size_t(count - i) * sizeof(Half));
  if (i < count) store(out + i, load(rest));
}

// A block is [groups]: [group / kDeep][2][16 columns][kDeep of k], + kShift, then 32 float scales.
template <typename T>
void pack_int8(Pool& pool, Linear& linear, Rows weight) {
  linear.groups = (linear.k + linear.group - 1) / linear.group;
  pack_blocks(pool, linear, linear.groups * group_bytes(linear.group), [&](int64_t block) {
    alignas(64) float values[kMaxGroup] = {};
    int32_t near[kMaxGroup];
    uint8_t stored[kMaxGroup];
    linear.rows_of(block, [&](int64_t c, int64_t index) {
      for (int64_t g = 0; g < linear.groups; ++g) {
        const int64_t begin = g * linear.group, count = std::min(linear.group, linear.k - begin);
        if (count < linear.group) std::memset(values, 0, sizeof(values));
        widen(static_cast<const T*>(weight[index]) + begin, count, values);
        Floats most = spread(0.0f);
        for (int64_t i = 0; i < linear.group; i += 16) most = max(most, absolute(load(values + i)));
        const float top = reduce_max(most), scale = top / 127.0f;
        const Floats inverse = spread(top > 0 ? 127.0f / top : 0.0f);
        for (int64_t i = 0; i < linear.group; i += 16) {
          const Ints sixteen = to_ints(load(values + i) * inverse);
          std::memcpy(near + i, &sixteen, sizeof(sixteen));
        }
        for (int64_t i = 0; i < linear.group; ++i) stored[i] = uint8_t(near[i] + kShift);
        uint8_t* packed = linear.block(block) + g * group_bytes(linear.group);
        std::memcpy(packed + linear.group * kColumns + c * int64_t(sizeof(float)), &scale, sizeof(float));
        for (int64_t i = 0; i < linear.group; i += kDeep) std::memcpy(packed + i * kColumns + c * kDeep, stored + i, kDeep);
      }
    });
  });
}

// Whether float16 holds these values exactly, as it does those of files that have it.
inline bool halves_hold(const float* values, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) {
    const Floats all = load(values + i, count - i);
    Half narrow[16];
    store(narrow, all);
    if (reduce_max(absolute(all - load(narrow))) != 0) return false;
  }
  return true;
}

// A block is [groups]: [32 / kDeep / 2][2][16 columns][kDeep of k and, in the upper four bits, the next kDeep], then 32
// scales and 32 offsets, as float16 where that holds all of them. `codes` [n, k]; scales and offsets [n, k / group].
inline void pack_codes_int8(Pool& pool, Linear& linear, Rows codes, const float* scales, const float* offsets) {
  const int64_t of_file = linear.group, ends = linear.n * (linear.k / of_file);
  linear.half_ends = halves_hold(scales, ends) && halves_hold(offsets, ends);
  linear.group = kCodesGroup;
  linear.groups = linear.k / kCodesGroup;
  pack_blocks(pool, linear, linear.groups * linear.code_group_bytes(), [&](int64_t block) {
    linear.rows_of(block, [&](int64_t c, int64_t row) {
      const uint8_t* of_weight = static_cast<const uint8_t*>(codes[row]);
      for (int64_t g = 0; g < linear.groups; ++g) {
        uint8_t* packed = linear.block(block) + g * linear.code_group_bytes();
        for (int64_t i = 0; i < kCodesGroup; i += 2 * kDeep) {
          uint32_t lower = 0, upper = 0;
          std::memcpy(&lower, of_weight + g * kCodesGroup + i, kDeep);
          std::memcpy(&upper, of_weight + g * kCodesGroup + i + kDeep, kDeep);
          lower |= upper << 4;
          std::memcpy(packed + (i / kDeep + c / 16) * kRegister + c % 16 * kDeep, &lower, kDeep);
        }
        const int64_t of_row = row * (linear.k / of_file) + g * kCodesGroup / of_file;
        linear.set_end(packed + kCodesGroup * kColumns / 2, c, scales[of_row]);
        linear.set_end(packed + kCodesGroup * kColumns / 2, kColumns + c, offsets[of_row]);
      }
    });
  });
}

// Activations, and what their sums are needed for: computed once for each row, where a tile would repeat it in each block.
struct Quantised {
  Array<Small> values;    // [rows][groups * group]
  Array<float> scales;    // [rows][groups]
  Array<int32_t> starts;  // [rows][groups]: what int8's sums start from
  Array<float> sums;      // [rows][groups]: of a group's activations, which offsets of codes are multiplied by
};

// The form of a product's weights. kCodes: four bits, widened to bytes.
enum class Form { kInt8, kCodes4, kCodes };

template <int G, Form F>
void quantise_row(const Linear& linear, const float* x, Quantised& to, int64_t row) {
  for (int64_t g = 0; g < linear.groups; ++g) {
    const int64_t place = row * linear.groups + g;
    Floats part[G / 16], most = spread(0.0f);
    for (int i = 0; i < G / 16; ++i) {
      const int64_t at = g * G + i * 16;
      part[i] = load(x + at, std::max<int64_t>(0, linear.k - at));
      most = max(most, absolute(part[i]));
    }
    const float top = reduce_max(most);
    const Floats inverse = spread(top > 0 ? 127.0f / top : 0.0f);
    Ints sum = spread(0);
    for (int i = 0; i < G / 16; ++i) {
      const Ints near = to_ints(part[i] * inverse);
      sum = plus(sum, near);
      store(to.values.data() + place * G + i * 16, near);
    }
    to.scales[place] = top / 127.0f;
    if constexpr (F == Form::kInt8) to.starts[place] = -kShift * reduce_add(sum);
    else to.sums[place] = to.scales[place] * float(reduce_add(sum));
  }
}

// The weights of a block in some form: `weights` and `ends` are those of its first group, each step that of a group.
struct Columns {
  const uint8_t* weights;
  int64_t weights_step;
  const uint8_t* ends;
  int64_t ends_step;
};

template <int R, int G, Form F>
void tile_int8(const Linear& linear, Columns from, const Quantised& x, int64_t row, int64_t block, float* y,
               int64_t stride, Into into, Ahead ahead) {
  const int64_t groups = linear.groups, width = groups * G, part = ahead.bytes / groups;
  const Small* values = x.values.data() + row * width;
  constexpr int H = halves(R);
  Floats total[R][2];
  for (int half = 0; half < 2; half += H) {
    const uint8_t *weights = from.weights, *ends = from.ends;
    for (int r = 0; r < R; ++r)
      for (int h = 0; h < H; ++h) total[r][half + h] = spread(0.0f);
    for (int64_t g = 0; g < groups; ++g, weights += from.weights_step, ends += from.ends_step) {
      if (half == 0) ahead.fetch(part);
      Ints sum[R][H];
      for (int r = 0; r < R; ++r)
        for (int h = 0; h < H; ++h)
          sum[r][h] = spread(F == Form::kInt8 ? x.starts[(row + r) * groups + g] : 0);
      const auto add = [&](int i, const Weights (&weight)[H]) {
        for (int r = 0; r < R; ++r) {
          int32_t deep;
          std::memcpy(&deep, values + r * width + g * G + i * kDeep, sizeof(deep));
          const Ints activations = spread(deep);
          for (int h = 0; h < H; ++h) sum[r][h] = dot(sum[r][h], weight[h], activations);
        }
      };
      if constexpr (F == Form::kCodes4) {
#pragma GCC unroll kUnrollInt8
        for (int i = 0; i < G / kDeep; i += 2) {
          Weights lower[H], upper[H];
          for (int h = 0; h < H; ++h) {
            const Weights both = load_weights(weights + (i + half + h) * kRegister);
            lower[h] = lower_codes(both);
            upper[h] = upper_codes(both);
          }
          add(i, lower);
          add(i + 1, upper);
        }
      } else {
#pragma GCC unroll kUnrollInt8
        for (int i = 0; i < G / kDeep; ++i) {
          Weights weight[H];
          for (int h = 0; h < H; ++h) weight[h] = load_weights(weights + (i * 2 + half + h) * kRegister);
          add(i, weight);
        }
      }
      Floats part_scale[H], part_offset[H];
      for (int h = 0; h < H; ++h) {
        part_scale[h] = linear.end(ends, (half + h) * 16);
        if (F != Form::kInt8) part_offset[h] = linear.end(ends, kColumns + (half + h) * 16);
      }
      for (int r = 0; r < R; ++r) {
        const int64_t place = (row + r) * groups + g;
        const Floats scale = spread(x.scales[place]);
        for (int h = 0; h < H; ++h) {
          Floats& own = total[r][half + h];
          own = fmadd(to_floats(sum[r][h]), scale * part_scale[h], own);
          if (F != Form::kInt8) own = fmadd(spread(x.sums[place]), part_offset[h], own);
        }
      }
    }
  }
  for (int r = 0; r < R; ++r) finish(linear, y + r * stride, block, total[r][0], total[r][1], into);
}

// Writes the codes of a block to `out` as bytes, in the order of int8's.
inline void widen_codes(const Linear& linear, const uint8_t* block, uint8_t* out) {
  for (int64_t g = 0; g < linear.groups; ++g, block += linear.code_group_bytes())
    for (int64_t i = 0; i < kCodesGroup / kDeep; i += 2)
      for (int64_t half = 0; half < 2; ++half) {
        const uint8_t* both = block + (i + half) * kRegister;
        uint8_t* lower = out + g * kCodesGroup * kColumns + (i * 2 + half) * kRegister;
        for (int64_t byte = 0; byte < kRegister; ++byte) {
          lower[byte] = both[byte] & 15;
          lower[2 * kRegister + byte] = both[byte] >> 4;
        }
      }
}

template <int G, Form F>
void quantise(Pool& pool, const Linear& linear, Input input, int64_t rows, Quantised& quantised) {
  grown(quantised.values, rows * linear.groups * G);
  grown(quantised.scales, rows * linear.groups);
  if constexpr (F == Form::kInt8) grown(quantised.starts, rows * linear.groups);
  else grown(quantised.sums, rows * linear.groups);
  by_rows(pool, rows, [&](int64_t row) {
    static thread_local Array<float> normed;
    const float* x = input.x + row * linear.k;
    if (input.norm) {
      rms_norm(x, input.norm, grown(normed, linear.k), linear.k, input.epsilon);
      x = normed.data();
    }
    quantise_row<G, F>(linear, x, quantised, row);
  });
}

template <int G, Form F>
void apply_int8(Pool& pool, const Linear& linear, Input input, int64_t rows, float* y, int64_t stride, Into into) {
  static Quantised quantised;  // one caller at a time
  quantise<G, F>(pool, linear, input, rows, quantised);
  by_tasks(pool, linear, rows, kTaskInt8, [&](int64_t block, int64_t begin, int64_t count, Ahead ahead) {
    const auto rows_by = [&](auto form, Columns columns) {
      tiles<kRowsInt8>(count, [&](auto size, int64_t at) {
        tile_int8<size(), G, form()>(linear, columns, quantised, begin + at, block, y + (begin + at) * stride, stride, into,
                                     ahead.share(at, size(), count));
      });
    };
    const uint8_t* weights = linear.block(block);
    if constexpr (F == Form::kInt8) {
      return rows_by(std::integral_constant<Form, F>(), {weights, group_bytes(G), weights + G * kColumns, group_bytes(G)});
    } else {
      const int64_t step = linear.code_group_bytes();
      const uint8_t* ends = weights + G * kColumns / 2;
      if (count <= 2 * kRowsInt8) return rows_by(std::integral_constant<Form, F>(), {weights, step, ends, step});
      static thread_local Array<uint8_t> wide;  // for several tiles a block is widened once: it stays in the cache
      widen_codes(linear, weights, grown(wide, linear.groups * G * kColumns));
      rows_by(std::integral_constant<Form, Form::kCodes>(), {wide.data(), G * kColumns, ends, step});
    }
  });
}

}  // namespace pagefleet
