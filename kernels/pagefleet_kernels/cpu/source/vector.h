// Sixteen lanes, whatever the instruction set, and functions of them. The instruction set's own file has the lanes' type
// `Floats` and what it does in a way of its own; no other file names an intrinsic.
#pragma once
#include <cstdint>

#if defined(__AVX512F__)
#include "avx512.h"
#elif defined(__AVX2__)
#include "avx2.h"
#include "parts.h"
#elif defined(__ARM_FEATURE_DOTPROD)
#include "neon.h"
#include "parts.h"
#else
#error "no file for this instruction set"
#endif

// Before a loop over an array of sums: GCC keeps an array in registers only when it unrolls every loop over it early.
#define UNROLLED _Pragma("GCC unroll 16")

namespace pagefleet {

struct Bfloat {
  uint16_t bits;  // the upper half of a float32
};

// How many halves of a block a tile of `rows` rows sums at a time.
constexpr int halves(int rows) { return 2 * rows <= kSums ? 2 : 1; }

// For use now, and for later: into the first and the second cache.
inline void prefetch(const void* place) { __builtin_prefetch(place, 0, 3); }
inline void prefetch_later(const void* place) { __builtin_prefetch(place, 0, 2); }

// c[0] r^(N - 1) + ... + c[N - 1], by Horner's rule.
template <int N>
Floats polynomial(Floats r, const float (&c)[N]) {
  Floats p = spread(c[0]);
  for (int i = 1; i < N; ++i) p = fmadd(p, r, spread(c[i]));
  return p;
}

// e^x within 2 ulp for x <= 88; 0 below -87.3 (and for -inf). Cody and Waite's reduction, a polynomial of degree 6.
inline Floats exp(Floats x) {
  x = max(x, spread(-104.0f));
  const Floats n = whole(x * spread(1.44269504088896341f));
  Floats r = fnmadd(n, spread(0.693359375f), x);
  r = fnmadd(n, spread(-2.12194440e-4f), r);
  const Floats p = polynomial(r, {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f,
                                  5.0000001201e-1f});
  return times_power_of_2(fmadd(p, r * r, r + spread(1.0f)), n);
}

// 2^x within 2 ulp for x <= 127; 0 below -150 (and for -inf). A minimax polynomial of degree 6.
inline Floats exp2(Floats x) {
  x = max(x, spread(-151.0f));
  const Floats n = whole(x);
  const Floats p = polynomial(x - n, {1.5345809516e-4f, 1.3399930904e-3f, 9.6184890717e-3f, 5.5503286421e-2f,
                                      2.4022646248e-1f, 6.9314718246e-1f, 1.0f});
  return times_power_of_2(p, n);
}

inline Floats silu(Floats x) { return x / (spread(1.0f) + exp(min(spread(0.0f) - x, spread(88.0f)))); }

// tanh(x) = 1 - 2 / (e^2x + 1), whose absolute error is that of a float32 near 1.
inline Floats tanh(Floats x) {
  return spread(1.0f) - spread(2.0f) / (exp(min(x + x, spread(88.0f))) + spread(1.0f));
}

// GELU (Hendrycks and Gimpel, 2016) by its tanh approximation: x (1 + tanh u) / 2 = x / (1 + e^-2u),
// u = sqrt(2 / pi) (x + 0.044715 x^3).
inline Floats gelu_tanh(Floats x) {
  const Floats u = x * fmadd(x * x, spread(0.0356774081f), spread(0.7978845608f));
  return x / (spread(1.0f) + exp(min(u * spread(-2.0f), spread(88.0f))));
}

// The function of a gated product's two halves; the numbers are those of `ACTIVATIONS` in native.py.
enum class Activation : int { kNone = 0, kSilu = 1, kGeluTanh = 2, kClampedSwiglu = 3 };

inline Floats gate(Activation activation, Floats x, Floats up) {
  if (activation == Activation::kSilu) return silu(x) * up;
  if (activation == Activation::kGeluTanh) return gelu_tanh(x) * up;
  const Floats limit = spread(7.0f);  // gpt-oss: x sigmoid(1.702 x) (up + 1), both clamped at 7
  x = min(x, limit);
  up = max(min(up, limit), spread(-7.0f));
  const Floats swish = x / (spread(1.0f) + exp(min(x * spread(-1.702f), spread(88.0f))));
  return (up + spread(1.0f)) * swish;
}

}  // namespace pagefleet
