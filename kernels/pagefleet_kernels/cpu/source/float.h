// Products in float32, with weights stored as their file has them wherever that is smaller: bfloat16, float16, or integer
// codes of 4 or 8 bits with a scale and an offset for each row and group of 16 or 32, as GGUF's types are. Each stored
// weight stands for exactly one float32, and those are multiplied: a result has the same bits as from float32 weights.
#pragma once
#include "linear.h"
#include "rows.h"

namespace pagefleet {

constexpr int kRowsFloat = 12;
constexpr int64_t kTaskFloat = 96, kTaskWidened = 192;  // rows of one task, multiples of kRowsFloat
constexpr int64_t kAheadRows = 8;  // of float32: with fewer, memory is read as fast as it can be anyway
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
      const __m512i both = _mm512_loadu_si512(block + (from + i) * kLine);
      _mm512_storeu_si512(out, _mm512_slli_epi32(both, 16));
      _mm512_storeu_si512(out + 16, _mm512_and_si512(both, _mm512_set1_epi32(int(0xffff0000u))));
    }
  } else if constexpr (S == Storage::kHalf) {  // [k][32]
    const Half* halves = reinterpret_cast<const Half*>(block) + from * kColumns;
    for (int64_t i = 0; i < count * kColumns; i += 16) store16(out + i, load16(halves + i));
  } else if constexpr (S == Storage::kCodes4 || S == Storage::kCodes8) {  // [groups]: codes, 32 scales, 32 offsets
    constexpr int64_t bits = S == Storage::kCodes4 ? 4 : 8;
    const uint8_t* packed = block + from / linear.group * codes_bytes(linear.group, bits);
    const uint8_t* codes = packed + from % linear.group * kColumns * bits / 8;
    const uint8_t* scales = packed + linear.group * kColumns * bits / 8;
    for (int half = 0; half < 2; ++half) {
      const __m512 scale = _mm512_loadu_ps(scales + half * kLine);
      const __m512 offset = _mm512_loadu_ps(scales + (2 + half) * kLine);
      const auto put = [&](int i, __m512 code) {
        _mm512_storeu_ps(out + i * kColumns + half * 16, _mm512_fmadd_ps(code, scale, offset));
      };
      if constexpr (bits == 4) {  // [group / 8][2][16 columns] of eight codes
        const __m512 values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        for (int eight = 0; eight < 2; ++eight) {
          const __m512i all = _mm512_loadu_si512(codes + (2 * eight + half) * kLine);
          for (int i = 0; i < 8; ++i)  // by the lowest four bits
            put(8 * eight + i, _mm512_permutexvar_ps(_mm512_srli_epi32(all, 4 * i), values));
        }
      } else {  // [group][32 columns]
        for (int i = 0; i < kStep; ++i) {
          const __m128i sixteen = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i * kColumns + half * 16));
          put(i, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(sixteen)));
        }
      }
    }
  }
}

// R rows of x by one block, whose weights are stored as S.
template <int R, Storage S>
void tile_float(const Linear& linear, const uint8_t* weights, const float* x, int64_t block, float* y, int64_t stride,
                Into into, Ahead ahead) {
  const int64_t k = linear.k, part = ahead.bytes * kStep / k;
  alignas(64) float wide[kStep * kColumns];
  __m512 total[R][2];
  for (int r = 0; r < R; ++r) total[r][0] = total[r][1] = _mm512_setzero_ps();
  for (int64_t from = 0; from < k; from += kStep) {
    const int64_t count = std::min(kStep, k - from);
    const float* row = S == Storage::kFloat ? reinterpret_cast<const float*>(weights) + from * kColumns : wide;
    ahead.fetch(part);
    widen<S>(linear, weights, from, count, wide);
    for (int64_t i = 0; i < count; ++i, row += kColumns) {
      const __m512 low = _mm512_loadu_ps(row), high = _mm512_loadu_ps(row + 16);
      for (int r = 0; r < R; ++r) {
        const __m512 value = _mm512_set1_ps(x[r * k + from + i]);
        total[r][0] = _mm512_fmadd_ps(value, low, total[r][0]);
        total[r][1] = _mm512_fmadd_ps(value, high, total[r][1]);
      }
    }
  }
  for (int r = 0; r < R; ++r) finish(linear, y + r * stride, block, total[r][0], total[r][1], into);
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
      tiles<kRowsFloat>(count, [&](auto size, int64_t at) {
        const int64_t row = begin + at;
        tile_float<size(), storage()>(linear, weights, x + row * linear.k, block, y + row * stride, stride, into,
                                   ahead.share(at, size(), count));
      });
    };
    if (S == Storage::kFloat || count <= kRowsFloat) return rows_by(std::integral_constant<Storage, S>());
    static thread_local Array<float> wide;  // for several tiles the block is widened once: it stays in the cache
    float* widened = grown(wide, linear.k * kColumns);
    for (int64_t from = 0; from < linear.k; from += kStep)
      widen<S>(linear, weights, from, std::min(kStep, linear.k - from), widened + from * kColumns);
    weights = reinterpret_cast<const uint8_t*>(widened);
    rows_by(std::integral_constant<Storage, Storage::kFloat>());
  });
}

// `weight` [n, k] in the type that is stored.
template <typename T, typename Place>
void pack_plain(Pool& pool, Linear& linear, const T* weight, Place place) {
  linear.allocate(linear.k * kColumns * int64_t(sizeof(T)));
  parallel(pool, linear.blocks, [&](int64_t block) {
    T* out = reinterpret_cast<T*>(linear.block(block));
    linear.rows_of(block, [&](int64_t c, int64_t row) {
      for (int64_t i = 0; i < linear.k; ++i) out[i * kColumns + place(c)] = weight[row * linear.k + i];
    });
  });
}

// `codes` [n, k]; `scales` and `offsets` [n, k / group].
inline void pack_codes(Pool& pool, Linear& linear, const uint8_t* codes, const float* scales, const float* offsets) {
  const int64_t bits = linear.storage == Storage::kCodes4 ? 4 : 8, group = linear.group, bytes = codes_bytes(group, bits);
  linear.groups = linear.k / group;
  linear.allocate(linear.groups * bytes);
  parallel(pool, linear.blocks, [&](int64_t block) {
    linear.rows_of(block, [&](int64_t c, int64_t row) {
      for (int64_t g = 0; g < linear.groups; ++g) {
        uint8_t* packed = linear.block(block) + g * bytes;
        const uint8_t* from = codes + row * linear.k + g * group;
        for (int64_t i = 0; i < group; ++i) {
          if (bits == 8) packed[i * kColumns + c] = from[i];
          else packed[i / 8 * 2 * kLine + c / 16 * kLine + c % 16 * 4 + i % 8 / 2] |= uint8_t(from[i] << (i % 2 * 4));
        }
        float* ends = reinterpret_cast<float*>(packed + group * kColumns * bits / 8);
        ends[c] = scales[row * linear.groups + g];
        ends[kColumns + c] = offsets[row * linear.groups + g];
      }
    });
  });
}

}  // namespace pagefleet
