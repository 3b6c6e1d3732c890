// Products by how their weights are stored, the two of an MLP, and those of a mixture of experts.
#pragma once
#include <vector>

#include "float.h"
#include "int8.h"

namespace pagefleet {

constexpr int64_t kMlpRows = 128;  // at a time: the second product reads the first one's result while it is in the cache

// `from` is the type of the rows of `weight` that become int8; others have the stored one. Scales and offsets belong to codes.
struct Stored {
  Rows weight;
  Storage from;
  const float *scales, *offsets;
};

inline void pack(Pool& pool, Linear& linear, const Stored& stored) {
  const auto in_order = [](int64_t column) { return column; };
  const auto in_pairs = [](int64_t column) { return column % 16 * 2 + column / 16; };
  const auto [weight, from, scales, offsets] = stored;
  switch (linear.storage) {
    case Storage::kInt8:
      if (from == Storage::kBfloat16) return pack_int8<Bfloat>(pool, linear, weight);
      if (from == Storage::kHalf) return pack_int8<Half>(pool, linear, weight);
      return pack_int8<float>(pool, linear, weight);
    case Storage::kCodes4Int8: return pack_codes_int8(pool, linear, weight, scales, offsets);
    case Storage::kCodes4:
    case Storage::kCodes8: return pack_codes(pool, linear, weight, scales, offsets);
    case Storage::kBfloat16: return pack_plain<uint16_t>(pool, linear, weight, in_pairs);
    case Storage::kHalf: return pack_plain<Half>(pool, linear, weight, in_order);
    case Storage::kFloat: return pack_plain<float>(pool, linear, weight, in_order);
  }
}

inline Linear prepare(Pool& pool, Storage storage, const Stored& stored, const float* bias, int64_t n, int64_t k, int64_t group,
                      Activation activation) {
  Linear linear{n, k, storage, group, activation};
  linear.blocks = linear.gated() ? (n / 2 + 15) / 16 : (n + kColumns - 1) / kColumns;
  pack(pool, linear, stored);
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
      if (linear.group == 64) return apply_int8<64, Form::kInt8>(pool, linear, input, rows, y, stride, into);
      return apply_int8<32, Form::kInt8>(pool, linear, input, rows, y, stride, into);
    case Storage::kCodes4Int8: return apply_int8<kCodesGroup, Form::kCodes4>(pool, linear, input, rows, y, stride, into);
    case Storage::kCodes4: return apply_float<Storage::kCodes4>(pool, linear, input, rows, y, stride, into);
    case Storage::kCodes8: return apply_float<Storage::kCodes8>(pool, linear, input, rows, y, stride, into);
    case Storage::kBfloat16: return apply_float<Storage::kBfloat16>(pool, linear, input, rows, y, stride, into);
    case Storage::kHalf: return apply_float<Storage::kHalf>(pool, linear, input, rows, y, stride, into);
    case Storage::kFloat: return apply_float<Storage::kFloat>(pool, linear, input, rows, y, stride, into);
  }
}

// y [rows, k] = or += down(activation(gate) * up) of x [rows, k], normalised where `norm` is given. y may be x.
inline void mlp(Pool& pool, const Linear& gate_up, const Linear& down, const float* norm, float epsilon, int64_t rows,
                const float* x, float* y, Into into) {
  static Array<float> inner, halves;  // one caller at a time
  const bool fused = gate_up.activation == Activation::kSilu;
  float* gated = grown(inner, std::min(rows, kMlpRows) * down.k);
  float* both = fused ? nullptr : grown(halves, std::min(rows, kMlpRows) * gate_up.n);
  for (int64_t row = 0; row < rows; row += kMlpRows) {
    const int64_t count = std::min(kMlpRows, rows - row);
    const Input input{x + row * gate_up.k, norm, epsilon};
    if (fused) {
      apply(pool, gate_up, input, count, gated, Into::kGate);
    } else {
      apply(pool, gate_up, input, count, both, Into::kSet);
      by_rows(pool, count, [&](int64_t i) { gate(gate_up.activation, both + i * gate_up.n, gated + i * down.k, down.k); });
    }
    apply(pool, down, {gated}, count, y + row * down.n, into);
  }
}

// The MLPs of a mixture of experts (Shazeer et al., 2017): each row of x [rows, k] goes through its `top` experts.
struct Experts {
  std::vector<const Linear*> gate_up, down;
};

// y [rows, k] = the sum over a row's experts of weights [rows, top] times the expert's MLP of x. The rows of one expert
// are one product; a row adds its experts in the order of their numbers, whatever other rows there are.
inline void experts(Pool& pool, const Experts& all, const float* x, const int32_t* chosen, const float* weights,
                    int64_t rows, int64_t top, float* y) {
  static Array<float> gathered, results;  // one caller at a time
  const int64_t count = int64_t(all.down.size()), k = all.down[0]->n;
  std::vector<std::vector<int64_t>> places(count);  // row * top + which of its experts
  for (int64_t at = 0; at < rows * top; ++at) places[chosen[at]].push_back(at);
  std::memset(y, 0, size_t(rows * k) * sizeof(float));
  for (int64_t expert = 0; expert < count; ++expert) {
    const int64_t own = int64_t(places[expert].size());
    if (own == 0) continue;
    float *in = grown(gathered, own * k), *out = grown(results, own * k);
    by_rows(pool, own, [&](int64_t i) { std::memcpy(in + i * k, x + places[expert][i] / top * k, size_t(k) * sizeof(float)); });
    mlp(pool, *all.gate_up[expert], *all.down[expert], nullptr, 0, own, in, out, Into::kSet);
    by_rows(pool, own, [&](int64_t i) {
      const Floats weight = spread(weights[places[expert][i]]);
      float* sum = y + places[expert][i] / top * k;
      for (int64_t d = 0; d < k; d += 16) {
        const Floats part = load(out + i * k + d, k - d), before = load(sum + d, k - d);
        store(sum + d, fmadd(weight, part, before), k - d);
      }
    });
  }
}

}  // namespace pagefleet
