// AVX-512 arithmetic that the instruction set lacks, and loads of the KV cache's two element types.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace pagefleet {

using Half = uint16_t;  // IEEE binary16

inline __m512 load16(const float* p) { return _mm512_loadu_ps(p); }
inline __m512 load16(const Half* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline void store16(float* p, __m512 v) { _mm512_storeu_ps(p, v); }
inline void store16(Half* p, __m512 v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline void store1(float* p, float v) { *p = v; }
inline void store1(Half* p, float v) { *p = Half(_cvtss_sh(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)); }

// c[0] r^(N - 1) + ... + c[N - 1], by Horner's rule.
template <int N>
__m512 polynomial(__m512 r, const float (&c)[N]) {
  __m512 p = _mm512_set1_ps(c[0]);
  for (int i = 1; i < N; ++i) p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c[i]));
  return p;
}

// e^x within 2 ulp for x <= 88; 0 below -87.3 (and for -inf). Cody and Waite's reduction, a polynomial of degree 6.
inline __m512 exp16(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-104.0f));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341f)), 8);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  const __m512 p = polynomial(r, {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f,
                                  5.0000001201e-1f});
  return _mm512_scalef_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), _mm512_add_ps(r, _mm512_set1_ps(1.0f))), n);
}

// 2^x within 2 ulp for x <= 127; 0 below -150 (and for -inf). A minimax polynomial of degree 6.
inline __m512 exp2_16(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-151.0f));
  const __m512 n = _mm512_roundscale_ps(x, 8);
  const __m512 p = polynomial(_mm512_sub_ps(x, n), {1.5345809516e-4f, 1.3399930904e-3f, 9.6184890717e-3f, 5.5503286421e-2f,
                                                    2.4022646248e-1f, 6.9314718246e-1f, 1.0f});
  return _mm512_scalef_ps(p, n);
}

inline __m512 silu(__m512 x) {
  const __m512 e = exp16(_mm512_min_ps(_mm512_sub_ps(_mm512_setzero_ps(), x), _mm512_set1_ps(88.0f)));
  return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
}

// tanh(x) = 1 - 2 / (e^2x + 1), whose absolute error is that of a float32 near 1.
inline __m512 tanh16(__m512 x) {
  const __m512 e = exp16(_mm512_min_ps(_mm512_add_ps(x, x), _mm512_set1_ps(88.0f)));
  return _mm512_sub_ps(_mm512_set1_ps(1.0f), _mm512_div_ps(_mm512_set1_ps(2.0f), _mm512_add_ps(e, _mm512_set1_ps(1.0f))));
}

// GELU (Hendrycks and Gimpel, 2016) by its tanh approximation: x (1 + tanh u) / 2 = x / (1 + e^-2u),
// u = sqrt(2 / pi) (x + 0.044715 x^3).
inline __m512 gelu_tanh(__m512 x) {
  const __m512 square = _mm512_mul_ps(x, x);
  const __m512 u = _mm512_mul_ps(x, _mm512_fmadd_ps(square, _mm512_set1_ps(0.0356774081f), _mm512_set1_ps(0.7978845608f)));
  const __m512 e = exp16(_mm512_min_ps(_mm512_mul_ps(u, _mm512_set1_ps(-2.0f)), _mm512_set1_ps(88.0f)));
  return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
}

// The function of a gated product's two halves; the numbers are those of `ACTIVATIONS` in native.py.
enum class Activation : int { kNone = 0, kSilu = 1, kGeluTanh = 2, kClampedSwiglu = 3 };

inline __m512 gate(Activation activation, __m512 x, __m512 up) {
  if (activation == Activation::kSilu) return _mm512_mul_ps(silu(x), up);
  if (activation == Activation::kGeluTanh) return _mm512_mul_ps(gelu_tanh(x), up);
  const __m512 limit = _mm512_set1_ps(7.0f);  // gpt-oss: x sigmoid(1.702 x) (up + 1), both clamped at 7
  x = _mm512_min_ps(x, limit);
  up = _mm512_max_ps(_mm512_min_ps(up, limit), _mm512_set1_ps(-7.0f));
  const __m512 e = exp16(_mm512_min_ps(_mm512_mul_ps(x, _mm512_set1_ps(-1.702f)), _mm512_set1_ps(88.0f)));
  const __m512 swish = _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
  return _mm512_mul_ps(_mm512_add_ps(up, _mm512_set1_ps(1.0f)), swish);
}

inline __mmask16 lanes(int64_t count) { return count >= 16 ? 0xffff : __mmask16((1u << count) - 1); }

}  // namespace pagefleet
