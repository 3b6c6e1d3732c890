// Products by how their weights are stored, and the two of an MLP.
#pragma once
#include "float.h"
#include "int8.h"

namespace pagefleet {

constexpr int64_t kMlpRows = 128;  // at a time: the second product reads the first one's result while it is in the cache

inline void pack(Pool& pool, Linear& linear, const void* weight, const float* scales, const float* offsets) {
  const auto in_order = [](int64_t column) { return column; };
  const auto in_pairs = [](int64_t column) { return column % 16 * 2 + column / 16; };
  switch (linear.storage) {
    case Storage::kInt8: return pack_int8(pool, linear, static_cast<const float*>(weight));
    case Storage::kCodes4:
    case Storage::kCodes8: return pack_codes(pool, linear, static_cast<const uint8_t*>(weight), scales, offsets);
    case Storage::kBfloat16: return pack_plain(pool, linear, static_cast<const uint16_t*>(weight), in_pairs);
    case Storage::kHalf: return pack_plain(pool, linear, static_cast<const Half*>(weight), in_order);
    case Storage::kFloat: return pack_plain(pool, linear, static_cast<const float*>(weight), in_order);
  }
}

inline Linear prepare(Pool& pool, Storage storage, const void* weight, const float* scales, const float* offsets,
                      const float* bias, int64_t n, int64_t k, int64_t group, bool gated) {
  Linear linear{n, k, storage, group, gated};
  linear.blocks = gated ? (n / 2 + 15) / 16 : (n + kColumns - 1) / kColumns;
  pack(pool, linear, weight, scales, offsets);
  if (bias) {
    linear.bias.assign(linear.blocks * kColumns, 0.0f);
    for (int64_t block = 0; block < linear.blocks; ++block)
      linear.rows_of(block, [&](int64_t c, int64_t row) { linear.bias[block * kColumns + c] = bias[row]; });
  }
  return linear;
}

inline void apply(Pool& pool, const Linear& linear, Input input, int64_t rows, float* y, Into into) {
  const int64_t stride = into == Into::kGate ? linear.n / 2 : linear.n;
  switch (linear.storage) {
    case Storage::kInt8:
      if (linear.group == 64) return apply_int8<64>(pool, linear, input, rows, y, stride, into);
      return apply_int8<32>(pool, linear, input, rows, y, stride, into);
    case Storage::kCodes4: return apply_float<Storage::kCodes4>(pool, linear, input, rows, y, stride, into);
    case Storage::kCodes8: return apply_float<Storage::kCodes8>(pool, linear, input, rows, y, stride, into);
    case Storage::kBfloat16: return apply_float<Storage::kBfloat16>(pool, linear, input, rows, y, stride, into);
    case Storage::kHalf: return apply_float<Storage::kHalf>(pool, linear, input, rows, y, stride, into);
    case Storage::kFloat: return apply_float<Storage::kFloat>(pool, linear, input, rows, y, stride, into);
  }
}

// x [rows, k] += down(silu(gate) * up) of x normalised.
inline void mlp(Pool& pool, const Linear& gate_up, const Linear& down, const float* norm, float epsilon, int64_t rows,
                float* x) {
  static Array<float> inner;  // one caller at a time
  float* gated = grown(inner, std::min(rows, kMlpRows) * down.k);
  for (int64_t row = 0; row < rows; row += kMlpRows) {
    const int64_t count = std::min(kMlpRows, rows - row);
    float* part = x + row * gate_up.k;
    apply(pool, gate_up, {part, norm, epsilon}, count, gated, Into::kGate);
    apply(pool, down, {gated}, count, part, Into::kAdd);
  }
}

}  // namespace pagefleet
