// Products in float32, with weights stored as their file has them wherever that is smaller: bfloat16, float16, or integer
// codes of 4 or 8 bits with a scale and an offset for each row and group of 16 or 32, as GGUF's types are. Each stored
// weight stands for exactly one float32, and those are multiplied: a result has the same bits as from float32 weights.
#pragma once
#include "linear.h"
#include "rows.h"

namespace pagefleet {

constexpr int64_t kTaskFloat = 96, kTaskWidened = 192;  // rows of one task, multiples of kRowsFloat
constexpr int64_t kAheadRows = 8;  // of float32: with fewer, memory is read as fast as it can be anyway
constexpr int kRowsWidened = std::min(kRowsFloat, kSums / 2);  // more rows would widen a block twice
constexpr int64_t kStep = 16;      // of k, widened at a time

// The bytes of a group of `group` codes, its 32 scales and its 32 offsets.
constexpr int64_t codes_bytes(int64_t group, int64_t bits) {
  return kColumns * (group * bits / 8 + 2 * int64_t(sizeof(float)));
}

// Writes float32 of `count` <= kStep rows [k][32] of a block, from k = `from` on, to `out`.
template <Storage S>
void widen(const Linear& linear, const uint8_t* block, int64_t from, int64_t count, float* out) {
  if constexpr (S == Storage::kBfloat16) {  // [k][16]: one column below, the one sixteen later above
    for (int64_t i = 0; i < count; ++i, out += kColumns) {
      const Ints both = load_ints(block + (from + i) * kLine);
      store(out, lower_bfloats(both));
      store(out + 16, upper_bfloats(both));
    }
  } else if constexpr (S == Storage::kHalf) {  // [k][32]
    const Half* stored = reinterpret_cast<const Half*>(block) + from * kColumns;
    for (int64_t i = 0; i < count * kColumns; i += 16) store(out + i, load(stored + i));
  } else if constexpr (S == Storage::kCodes4 || S == Storage::kCodes8) {  // [groups]: codes, 32 scales, 32 offsets
    constexpr int64_t bits = S == Storage::kCodes4 ? 4 : 8;
    const uint8_t* packed = block + from / linear.group * codes_bytes(linear.group, bits);
    const uint8_t* codes = packed + from % linear.group * kColumns * bits / 8;
    const float* scales = reinterpret_cast<const float*>(packed + linear.group * kColumns * bits / 8);
    for (int half = 0; half < 2; ++half) {
      const Floats scale = load(scales + half * 16), offset = load(scales + kColumns + half * 16);
      const auto put = [&](int i, Floats code) { store(out + i * kColumns + half * 16, fmadd(code, scale, offset)); };
      if constexpr (bits == 4) {  // [group / 8][2][16 columns] of eight codes
        for (int eight = 0; eight < 2; ++eight) {
          const Ints all = load_ints(codes + (2 * eight + half) * kLine);
          for (int i = 0; i < 8; ++i) put(8 * eight + i, code(all, i));
        }
      } else {  // [group][32 columns]
        for (int i = 0; i < kStep; ++i) put(i, load_bytes(codes + i * kColumns + half * 16));
      }
    }
  }
}

// R rows of x by one block, whose weights are stored as S: float32 where a half at a time is summed.
template <int R, Storage S>
void tile_float(const Linear& linear, const uint8_t* weights, const float* x, int64_t block, float* y, int64_t stride,
                Into into, Ahead ahead) {
  const int64_t k = linear.k, part = ahead.bytes * kStep / k;
  constexpr int H = halves(R);
  static_assert(H == 2 || S == Storage::kFloat);
  alignas(64) float wide[kStep * kColumns];
  alignas(64) float total[R][2][16];
  for (int half = 0; half < 2; half += H) {
    Floats sum[R][H];
    UNROLLED for (int r = 0; r < R; ++r)
      for (int h = 0; h < H; ++h) sum[r][h] = spread(0.0f);
    for (int64_t from = 0; from < k; from += kStep) {
      const int64_t count = std::min(kStep, k - from);
      const float* row = S == Storage::kFloat ? reinterpret_cast<const float*>(weights) + from * kColumns : wide;
      if (half == 0) ahead.fetch(part);
      widen<S>(linear, weights, from, count, wide);
      for (int64_t i = 0; i < count; ++i, row += kColumns) {
        Floats weight[H];
        for (int h = 0; h < H; ++h) weight[h] = load(row + (half + h) * 16);
        UNROLLED for (int r = 0; r < R; ++r) {
          const Floats value = spread(x[r * k + from + i]);
          for (int h = 0; h < H; ++h) sum[r][h] = fmadd(value, weight[h], sum[r][h]);
        }
      }
    }
    UNROLLED for (int r = 0; r < R; ++r)
      for (int h = 0; h < H; ++h) store(total[r][half + h], sum[r][h]);
  }
  for (int r = 0; r < R; ++r) finish(linear, y + r * stride, block, load(total[r][0]), load(total[r][1]), into);
}

template <Storage S>
void apply_float(Pool& pool, const Linear& linear, Input input, int64_t rows, float* y, int64_t stride, Into into) {
  static Array<float> normed;  // one caller at a time
  const float* x = input.x;
  if (input.norm) {
    rms_norm(pool, x, input.norm, grown(normed, rows * linear.k), rows, linear.k, input.epsilon);
    x = normed.data();
  }
  const int64_t most = S == Storage::kFloat ? kTaskFloat : kTaskWidened;
  by_tasks(pool, linear, rows, most, [&](int64_t block, int64_t begin, int64_t count, Ahead ahead) {
    const uint8_t* weights = linear.block(block);
    if (S == Storage::kFloat && rows < kAheadRows) ahead = {};
    const auto rows_by = [&](auto storage) {
      constexpr int most_rows = storage() == Storage::kFloat ? kRowsFloat : kRowsWidened;
      tiles<most_rows>(count, [&](auto size, int64_t at) {
        const int64_t row = begin + at;
        tile_float<size(), storage()>(linear, weights, x + row * linear.k, block, y + row * stride, stride, into,
                                   ahead.share(at, size(), count));
      });
    };
    if (S == Storage::kFloat || count <= kRowsWidened) return rows_by(std::integral_constant<Storage, S>());
    static thread_local Array<float> wide;  // for several tiles the block is widened once: it stays in the cache
    float* widened = grown(wide, linear.k * kColumns);
    for (int64_t from = 0; from < linear.k; from += kStep)
      widen<S>(linear, weights, from, std::min(kStep, linear.k - from), widened + from * kColumns);
    weights = reinterpret_cast<const uint8_t*>(widened);
    rows_by(std::integral_constant<Storage, Storage::kFloat>());
  });
}

// `weight` in the type that is stored.
template <typename T, typename Place>
void pack_plain(Pool& pool, Linear& linear, Rows weight, Place place) {
  pack_blocks(pool, linear, linear.k * kColumns * int64_t(sizeof(T)), [&](int64_t block) {
    T* out = reinterpret_cast<T*>(linear.block(block));
    linear.rows_of(block, [&](int64_t c, int64_t index) {
      const T* row = static_cast<const T*>(weight[index]);
      for (int64_t i = 0; i < linear.k; ++i) out[i * kColumns + place(c)] = row[i];
    });
  });
}

// `codes` [n, k]; `scales` and `offsets` [n, k / group].
inline void pack_codes(Pool& pool, Linear& linear, Rows codes, const float* scales, const float* offsets) {
  const int64_t bits = linear.storage == Storage::kCodes4 ? 4 : 8, group = linear.group, bytes = codes_bytes(group, bits);
  linear.groups = linear.k / group;
  pack_blocks(pool, linear, linear.groups * bytes, [&](int64_t block) {
    linear.rows_of(block, [&](int64_t c, int64_t row) {
      for (int64_t g = 0; g < linear.groups; ++g) {
        uint8_t* packed = linear.block(block) + g * bytes;
        const uint8_t* from = static_cast<const uint8_t*>(codes[row]) + g * group;
        if (bits == 8) {
          for (int64_t i = 0; i < group; ++i) packed[i * kColumns + c] = from[i];
        } else {
          for (int64_t i = 0; i < group; i += 8) {
            uint8_t pairs[4];
            for (int64_t j = 0; j < 4; ++j) pairs[j] = uint8_t(from[i + 2 * j] | from[i + 2 * j + 1] << 4);
            std::memcpy(packed + i / 8 * 2 * kLine + c / 16 * kLine + c % 16 * 4, pairs, sizeof(pairs));
          }
        }
        float* ends = reinterpret_cast<float*>(packed + group * kColumns * bits / 8);
        ends[c] = scales[row * linear.groups + g];
        ends[kColumns + c] = offsets[row * linear.groups + g];
      }
    });
  });
}

}  // namespace pagefleet
