// Whole decoder layers with a dense MLP, one after the other in one call: Python calls cost a step of few rows a tenth of its time.
#pragma once
#include "attention.h"
#include "product.h"
#include "rows.h"

namespace pagefleet {

// A prepared layer. `rope` and `attention` have what is the layer's own; `Step` has the rest.
struct DecoderLayer {
  const Linear *qkv, *out, *gate_up, *down;
  const float *attention_norm, *mlp_norm;  // [hidden], or null
  float attention_epsilon, mlp_epsilon;
  Rope rope;
  Attention attention;
};

struct LayerPages {
  void *keys, *values;
};

struct Step {
  float* x;  // [tokens, hidden]
  int64_t tokens;
  const int32_t *positions, *slots;
  const int32_t* table;
  int64_t table_width;
  const int32_t *first, *context;
  int64_t sequences, kv_heads, head_dim, page_size;
};

// x goes through `count` layers, each with its own `pages`, which hold float32, or float16 where T is Half.
template <typename T>
void decode(Pool& pool, const DecoderLayer* layers, int64_t count, const LayerPages* pages, const Step& step) {
  static Array<float> rotated, attended;  // one caller at a time
  for (int64_t i = 0; i < count; ++i) {
    const DecoderLayer& layer = layers[i];
    const int64_t heads = layer.qkv->n / step.head_dim - 2 * step.kv_heads;
    float* qkv = grown(rotated, step.tokens * layer.qkv->n);
    apply(pool, *layer.qkv, {step.x, layer.attention_norm, layer.attention_epsilon}, step.tokens, qkv, Into::kSet);

    Rope turn = layer.rope;
    turn.qkv = qkv, turn.positions = step.positions, turn.slots = step.slots;
    turn.keys = pages[i].keys, turn.values = pages[i].values;
    turn.tokens = step.tokens, turn.heads = heads;
    turn.kv_heads = step.kv_heads, turn.head_dim = step.head_dim, turn.page_size = step.page_size;
    rope<T>(pool, turn);

    Attention job = layer.attention;
    job.q = qkv, job.q_stride = layer.qkv->n;
    job.out = grown(attended, step.tokens * heads * step.head_dim);
    job.keys = pages[i].keys, job.values = pages[i].values;
    job.table = step.table, job.table_width = step.table_width;
    job.first = step.first, job.context = step.context;
    job.sequences = step.sequences, job.heads = heads;
    job.kv_heads = step.kv_heads, job.head_dim = step.head_dim, job.page_size = step.page_size;
    attend<T>(pool, job);

    apply(pool, *layer.out, {job.out}, step.tokens, step.x, Into::kAdd);
    mlp(pool, *layer.gate_up, *layer.down, layer.mlp_norm, layer.mlp_epsilon, step.tokens, step.x, step.x, Into::kAdd);
  }
}

}  // namespace pagefleet
