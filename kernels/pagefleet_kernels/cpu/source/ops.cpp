// The C interface that native.py calls. One caller at a time: the engine has one thread.
#include "attention.h"
#include "layer.h"
#include "pool.h"
#include "product.h"
#include "rows.h"
#include "sampling.h"

using namespace pagefleet;

namespace {
Pool* pool = nullptr;
}

// All else is hidden, so that two libraries of one process share nothing.
#pragma GCC visibility push(default)
extern "C" {

int pagefleet_version() { return 9; }

void pagefleet_threads(int threads) {
  if (pool == nullptr) pool = new Pool(threads);  // for the life of the process, as its threads are
}

// `parts` [count] below one another have the rows [n, k] of the weight. They are of the type `from` (float32, bfloat16, float16) where
// it becomes int8, and else of the stored one. Scales and offsets [n, k / group] belong to codes.
void* pagefleet_linear(int64_t storage, int64_t from, const Rectangle* parts, int64_t count, const float* scales,
                       const float* offsets, const float* bias, int64_t n, int64_t k, int64_t group, int activation) {
  const std::vector<const void*> rows = rows_of(parts, count);
  const Stored stored{rows.data(), Storage(from), scales, offsets};
  return new Linear(prepare(*pool, Storage(storage), stored, bias, n, k, group, Activation(activation)));
}

void pagefleet_linear_free(void* linear) { delete static_cast<Linear*>(linear); }

void pagefleet_linear_apply(const void* linear, const float* x, const float* norm, float epsilon, int64_t rows, float* y,
                            int add) {
  apply(*pool, *static_cast<const Linear*>(linear), {x, norm, epsilon}, rows, y, add ? Into::kAdd : Into::kSet);
}

void pagefleet_mlp(const void* gate_up, const void* down, const float* norm, float epsilon, int64_t rows, const float* x,
                   float* y, int add) {
  mlp(*pool, *static_cast<const Linear*>(gate_up), *static_cast<const Linear*>(down), norm, epsilon, rows, x, y,
      add ? Into::kAdd : Into::kSet);
}

void* pagefleet_experts(const void* const* gate_up, const void* const* down, int64_t count) {
  auto* experts = new Experts;
  for (int64_t i = 0; i < count; ++i) {
    experts->gate_up.push_back(static_cast<const Linear*>(gate_up[i]));
    experts->down.push_back(static_cast<const Linear*>(down[i]));
  }
  return experts;
}

void pagefleet_experts_free(void* experts) { delete static_cast<Experts*>(experts); }

void pagefleet_experts_apply(const void* all, const float* x, const int32_t* chosen, const float* weights, int64_t rows,
                             int64_t top, float* y) {
  experts(*pool, *static_cast<const Experts*>(all), x, chosen, weights, rows, top, y);
}

void pagefleet_rms_norm(const float* x, const float* weight, float* y, int64_t rows, int64_t size, float epsilon) {
  rms_norm(*pool, x, weight, y, rows, size, epsilon);
}

void pagefleet_gate(int activation, const float* x, float* y, int64_t rows, int64_t inner) {
  by_rows(*pool, rows, [&](int64_t row) { gate(Activation(activation), x + row * 2 * inner, y + row * inner, inner); });
}

void pagefleet_rope(const Rope* job, int half) {
  if (half) rope<Half>(*pool, *job);
  else rope<float>(*pool, *job);
}

void pagefleet_attend(const Attention* job, int half) {
  if (half) attend<Half>(*pool, *job);
  else attend<float>(*pool, *job);
}

void pagefleet_decode(const DecoderLayer* layers, int64_t count, const LayerPages* pages, const Step* step, int half) {
  if (half) decode<Half>(*pool, layers, count, pages, *step);
  else decode<float>(*pool, layers, count, pages, *step);
}

void pagefleet_sample(const float* logits, int64_t vocab, Draw* draws, int64_t count) {
  parallel(*pool, count, [&](int64_t i) { sample(logits + draws[i].row * vocab, vocab, draws[i]); });
}

}  // extern "C"
#pragma GCC visibility pop
