// Sixteen lanes in one register of AVX-512, whose VNNI multiplies int8.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace pagefleet {

using Half = uint16_t;  // IEEE binary16
using Floats = __m512;
using Ints = __m512i;  // int32
using Mask = __mmask16;

// Thirty-two registers: 24 sums, and what is multiplied.
constexpr int kSums = 24, kRowsFloat = 12, kRowsInt8 = 6, kRowsAttention = 12;

inline Floats spread(float v) { return _mm512_set1_ps(v); }
inline Ints spread(int32_t v) { return _mm512_set1_epi32(v); }

// Lanes 0..count - 1.
inline Mask lanes(int64_t count) { return count >= 16 ? 0xffff : Mask((1u << count) - 1); }

// Lanes from..to.
inline Mask between(int64_t from, int64_t to) {
  const uint32_t upto = to < 0 ? 0 : to >= 15 ? 0xffff : (2u << to) - 1;
  return Mask(from <= 0 ? upto : from > 15 ? 0 : upto & ~((1u << from) - 1));
}

inline Floats load(const float* p) { return _mm512_loadu_ps(p); }
inline Floats load(const Half* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline Floats load(const float* p, int64_t count) { return _mm512_maskz_loadu_ps(lanes(count), p); }
inline Floats load(const float* p, int64_t count, Floats beyond) { return _mm512_mask_loadu_ps(beyond, lanes(count), p); }
inline void store(float* p, Floats v) { _mm512_storeu_ps(p, v); }
inline void store(float* p, Floats v, int64_t count) { _mm512_mask_storeu_ps(p, lanes(count), v); }
inline void store(Half* p, Floats v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline void store1(float* p, float v) { *p = v; }
inline void store1(Half* p, float v) { *p = Half(_cvtss_sh(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)); }

inline Floats fmadd(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats fnmadd(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }
inline Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Floats absolute(Floats v) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), v); }
inline Floats whole(Floats v) { return _mm512_roundscale_ps(v, 8); }
inline Floats times_power_of_2(Floats v, Floats power) { return _mm512_scalef_ps(v, power); }
inline float reduce_max(Floats v) { return _mm512_reduce_max_ps(v); }
inline float reduce_add(Floats v) { return _mm512_reduce_add_ps(v); }

inline Ints plus(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
inline int32_t reduce_add(Ints v) { return _mm512_reduce_add_epi32(v); }
inline int32_t reduce_min(Mask mask, Ints v) { return _mm512_mask_reduce_min_epi32(mask, v); }
inline Ints numbers() { return _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0); }
inline Ints to_ints(Floats v) { return _mm512_cvtps_epi32(v); }  // to the nearest, of two the even one
inline Floats to_floats(Ints v) { return _mm512_cvtepi32_ps(v); }

inline Mask greater(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
inline Mask equal(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
inline Mask not_a_number(Floats v) { return _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q); }
inline Mask either(Mask a, Mask b) { return Mask(a | b); }
inline bool any(Mask mask) { return mask != 0; }
inline Floats keep(Mask mask, Floats v) { return _mm512_maskz_mov_ps(mask, v); }  // 0 in the other lanes
inline Floats select(Mask mask, Floats yes, Floats no) { return _mm512_mask_mov_ps(no, mask, yes); }
inline Ints select(Mask mask, Ints yes, Ints no) { return _mm512_mask_mov_epi32(no, mask, yes); }

// Stored weights: sixteen bytes; the lower and the upper bfloat16 of each lane; eight codes of four bits in each lane.
inline Floats load_bytes(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline Ints load_ints(const void* p) { return _mm512_loadu_si512(p); }
inline Floats lower_bfloats(Ints both) { return _mm512_castsi512_ps(_mm512_slli_epi32(both, 16)); }
inline Floats upper_bfloats(Ints both) { return _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(int(0xffff0000u)))); }
inline Floats code(Ints eight, int index) {  // by the lowest four bits
  const __m512 values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_permutexvar_ps(_mm512_srli_epi32(eight, 4 * index), values);
}

// int8: vpdpbusd multiplies four unsigned bytes of each lane by four signed ones, so weights are stored + kShift.
using Small = int8_t;  // an activation
using Weights = __m512i;
constexpr int kDeep = 4, kShift = 128;
constexpr int kUnrollInt8 = 16;  // as a loop GCC moves every sum to another register and back
inline Weights load_weights(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline Weights lower_codes(Weights both) { return _mm512_and_si512(both, _mm512_set1_epi8(15)); }
inline Weights upper_codes(Weights both) { return lower_codes(_mm512_srli_epi16(both, 4)); }
inline Ints dot(Ints sum, Weights weights, Ints activations) { return _mm512_dpbusd_epi32(sum, weights, activations); }
inline void store(Small* p, Ints v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v)); }

inline void pause() { _mm_pause(); }

}  // namespace pagefleet
