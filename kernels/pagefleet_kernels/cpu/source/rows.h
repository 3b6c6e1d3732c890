// Operations on each token's row by itself: RMS norm, a gated MLP's activation, and rotary positions with the write into KV pages.
// Floor of all: their input read and their output written once.
#pragma once
#include <cmath>

#include "pool.h"
#include "vector.h"

namespace pagefleet {

constexpr int64_t kRowsPerTask = 4;
// Sixteen positions' keys share lines, which two threads must not write in turn; with few tokens they are of many sequences.
constexpr int64_t kRopeTogether = 32, kRopeFew = 96;

template <typename Body>
void by_rows(Pool& pool, int64_t rows, Body body, int64_t together = kRowsPerTask) {
  parallel(pool, (rows + together - 1) / together, [&](int64_t part) {
    for (int64_t row = part * together; row < std::min(rows, (part + 1) * together); ++row) body(row);
  });
}

// Root mean square layer normalisation (Zhang and Sennrich, 2019) of one row.
inline void rms_norm(const float* x, const float* weight, float* y, int64_t size, float epsilon) {
  Floats squares = spread(0.0f);
  for (int64_t i = 0; i < size; i += 16) {
    const Floats v = load(x + i, size - i);
    squares = fmadd(v, v, squares);
  }
  const Floats scale = spread(1.0f / std::sqrt(reduce_add(squares) / float(size) + epsilon));
  for (int64_t i = 0; i < size; i += 16) store(y + i, load(x + i, size - i) * scale * load(weight + i, size - i), size - i);
}

inline void rms_norm(Pool& pool, const float* x, const float* weight, float* y, int64_t rows, int64_t size, float epsilon) {
  by_rows(pool, rows, [&](int64_t row) { rms_norm(x + row * size, weight, y + row * size, size, epsilon); });
}

// y [inner] = the activation of x[0:inner], times x[inner:2 inner]
inline void gate(Activation activation, const float* x, float* y, int64_t inner) {
  for (int64_t i = 0; i < inner; i += 16) {
    const Floats first = load(x + i, inner - i), up = load(x + inner + i, inner - i);
    store(y + i, gate(activation, first, up), inner - i);
  }
}

struct Rope {
  float* qkv;              // [tokens, heads + 2 kv_heads, head_dim]; queries and keys are rotated in place
  const float* q_norm;     // [head_dim] or null (Qwen3 normalises each head)
  const float* k_norm;
  const float* cos;        // [positions, head_dim / 2]
  const float* sin;
  const int32_t* positions;  // [tokens]
  const int32_t* slots;      // [tokens]: page * page_size + offset
  void* keys;
  void* values;
  int64_t tokens, heads, kv_heads, head_dim, page_size;
  float epsilon;
};

// Su et al., 2021; halves as Hugging Face lays them out.
inline void rotate(float* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float low = x[i], high = x[half + i];
    x[i] = low * cos[i] - high * sin[i];
    x[half + i] = high * cos[i] + low * sin[i];
  }
}

template <typename T>
void rope(Pool& pool, const Rope& r) {
  const int64_t dim = r.head_dim, half = dim / 2, all = r.heads + 2 * r.kv_heads;
  by_rows(pool, r.tokens, [&](int64_t token) {
    float* row = r.qkv + token * all * dim;
    const float *cos = r.cos + r.positions[token] * half, *sin = r.sin + r.positions[token] * half;
    for (int64_t head = 0; head < r.heads + r.kv_heads; ++head) {
      const float* norm = head < r.heads ? r.q_norm : r.k_norm;
      if (norm) rms_norm(row + head * dim, norm, row + head * dim, dim, r.epsilon);
      rotate(row + head * dim, cos, sin, half);
    }
    const int64_t page = r.slots[token] / r.page_size, within = r.slots[token] % r.page_size;
    for (int64_t head = 0; head < r.kv_heads; ++head) {
      const int64_t place = (page * r.kv_heads + head) * r.page_size;
      const float *key = row + (r.heads + head) * dim, *value = row + (r.heads + r.kv_heads + head) * dim;
      T* keys = static_cast<T*>(r.keys) + (place + within / 16 * 16) * dim + within % 16;
      T* values = static_cast<T*>(r.values) + (place + within) * dim;
      for (int64_t d = 0; d < dim; ++d) store1(keys + d * 16, key[d]);
      for (int64_t d = 0; d < dim; d += 16) store(values + d, load(value + d));
    }
  }, r.tokens < kRopeFew ? kRowsPerTask : kRopeTogether);
}

}  // namespace pagefleet
