// The C interface that native.py calls. One caller at a time: the engine has one thread.
#include "attention.h"
#include "float.h"
#include "int8.h"
#include "pool.h"
#include "rows.h"
#include "sampling.h"

using namespace pagefleet;

namespace {
Pool* pool = nullptr;

void pack(Pool& pool, Linear& linear, const void* weight, const float* scales, const float* offsets) {
  const auto in_order = [](int64_t column) { return column; };
  const auto in_pairs = [](int64_t column) { return column % 16 * 2 + column / 16; };
  switch (linear.kept) {
    case Kept::kInt8: return pack_int8(pool, linear, static_cast<const float*>(weight));
    case Kept::kCodes4:
    case Kept::kCodes8: return pack_codes(pool, linear, static_cast<const uint8_t*>(weight), scales, offsets);
    case Kept::kBfloat16: return pack_plain(pool, linear, static_cast<const uint16_t*>(weight), in_pairs);
    case Kept::kHalf: return pack_plain(pool, linear, static_cast<const Half*>(weight), in_order);
    case Kept::kFloat: return pack_plain(pool, linear, static_cast<const float*>(weight), in_order);
  }
}

void apply(Pool& pool, const Linear& linear, const float* x, int64_t rows, float* y, bool accumulate) {
  switch (linear.kept) {
    case Kept::kInt8:
      if (linear.group == 64) return apply_int8<64>(pool, linear, x, rows, y, accumulate);
      return apply_int8<32>(pool, linear, x, rows, y, accumulate);
    case Kept::kCodes4: return apply_float<Kept::kCodes4>(pool, linear, x, rows, y, accumulate);
    case Kept::kCodes8: return apply_float<Kept::kCodes8>(pool, linear, x, rows, y, accumulate);
    case Kept::kBfloat16: return apply_float<Kept::kBfloat16>(pool, linear, x, rows, y, accumulate);
    case Kept::kHalf: return apply_float<Kept::kHalf>(pool, linear, x, rows, y, accumulate);
    case Kept::kFloat: return apply_float<Kept::kFloat>(pool, linear, x, rows, y, accumulate);
  }
}
}  // namespace

extern "C" {

int pagefleet_version() { return 4; }

void pagefleet_threads(int threads) {
  if (pool == nullptr) pool = new Pool(threads);  // for the life of the process, as its threads are
}

// `weight` [n, k]: float32, or what is kept (bfloat16, float16, codes); scales and offsets [n, k / group] for codes.
void* pagefleet_linear(int64_t kept, const void* weight, const float* scales, const float* offsets, const float* bias,
                       int64_t n, int64_t k, int64_t group) {
  auto* linear = new Linear{n, k, Kept(kept), group};
  linear->blocks = (n + kColumns - 1) / kColumns;
  pack(*pool, *linear, weight, scales, offsets);
  if (bias) {
    linear->bias.assign(linear->blocks * kColumns, 0.0f);
    std::memcpy(linear->bias.data(), bias, n * sizeof(float));
  }
  return linear;
}

void pagefleet_linear_free(void* linear) { delete static_cast<Linear*>(linear); }

void pagefleet_linear_apply(const void* linear, const float* x, int64_t rows, float* y, int accumulate) {
  apply(*pool, *static_cast<const Linear*>(linear), x, rows, y, accumulate != 0);
}

void pagefleet_rms_norm(const float* x, const float* weight, float* y, int64_t rows, int64_t size, float epsilon) {
  by_rows(*pool, rows, [&](int64_t row) { rms_norm(x + row * size, weight, y + row * size, size, epsilon); });
}

void pagefleet_silu_mul(const float* x, float* y, int64_t rows, int64_t inner) {
  by_rows(*pool, rows, [&](int64_t row) { silu_mul(x + row * 2 * inner, y + row * inner, inner); });
}

void pagefleet_rope(const Rope* job, int half) {
  if (half) rope<Half>(*pool, *job);
  else rope<float>(*pool, *job);
}

void pagefleet_attend(const Attention* job, int half) {
  if (half) attend<Half>(*pool, *job);
  else attend<float>(*pool, *job);
}

void pagefleet_sample(const float* logits, int64_t vocab, Draw* draws, int64_t count) {
  parallel(*pool, count, [&](int64_t i) { sample(logits + draws[i].row * vocab, vocab, draws[i]); });
}

}  // extern "C"
