// What AVX2 (with FMA and F16C) does in a way of its own, by parts of eight lanes.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace pagefleet {

// Sixteen registers: twelve sums, and what is multiplied.
constexpr int kSums = 6, kRowsFloat = 6, kRowsInt8 = 6, kRowsAttention = 6;

constexpr int kWidth = 8;
typedef float Part __attribute__((vector_size(4 * kWidth)));
typedef int32_t IntPart __attribute__((vector_size(4 * kWidth)));

inline Part part_of(float v) { return Part(_mm256_set1_ps(v)); }
inline Part part_of_halves(const uint16_t* p) { return Part(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))); }
inline void put_halves(uint16_t* p, Part v) {
  const __m128i halves = _mm256_cvtps_ph(__m256(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), halves);
}
inline uint16_t half_of(float v) { return uint16_t(_cvtss_sh(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)); }

inline Part fmadd(Part a, Part b, Part c) { return Part(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(c))); }
inline Part fnmadd(Part a, Part b, Part c) { return Part(_mm256_fnmadd_ps(__m256(a), __m256(b), __m256(c))); }
inline Part max(Part a, Part b) { return Part(_mm256_max_ps(__m256(a), __m256(b))); }
inline Part min(Part a, Part b) { return Part(_mm256_min_ps(__m256(a), __m256(b))); }
inline Part whole(Part v) { return Part(_mm256_round_ps(__m256(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)); }
inline IntPart to_ints(Part v) { return IntPart(_mm256_cvtps_epi32(__m256(v))); }
inline IntPart part_of_bytes(const uint8_t* p) {
  return IntPart(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

// int8: activations are stored as int16, and vpmaddwd multiplies pairs of them by weights that are widened once for all
// rows. No product of bytes fits: vpmaddubsw adds pairs in int16, which overflows where one operand is unsigned.
using Small = int16_t;  // an activation
constexpr int kDeep = 2, kShift = 0;
constexpr int kUnrollInt8 = 1;  // unrolled, GCC loads more at once than there are registers
inline IntPart part_of_weights(const uint8_t* p) {
  return IntPart(_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline IntPart dot(IntPart sum, IntPart weights, IntPart activations) {
  return sum + IntPart(_mm256_madd_epi16(__m256i(weights), __m256i(activations)));
}
inline void put_small(Small* p, const IntPart* sixteen) {
  const __m256i mixed = _mm256_packs_epi32(__m256i(sixteen[0]), __m256i(sixteen[1]));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(mixed, 0xd8));
}

inline void pause() { _mm_pause(); }

}  // namespace pagefleet
