// What ARM's NEON with the dot products of int8 (FEAT_DotProd) does in a way of its own, by parts of four lanes.
#pragma once
#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace pagefleet {

// Thirty-two registers: 24 sums, and what is multiplied.
constexpr int kSums = 6, kRowsFloat = 6, kRowsInt8 = 6, kRowsAttention = 6;

constexpr int kWidth = 4;
typedef float Part __attribute__((vector_size(4 * kWidth)));
typedef int32_t IntPart __attribute__((vector_size(4 * kWidth)));

inline Part part_of(float v) { return Part(vdupq_n_f32(v)); }
inline Part part_of_halves(const uint16_t* p) { return Part(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))); }
inline void put_halves(uint16_t* p, Part v) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(float32x4_t(v)))); }
inline uint16_t half_of(float v) {
  const __fp16 half = __fp16(v);
  uint16_t bits;
  std::memcpy(&bits, &half, sizeof(bits));
  return bits;
}

inline Part fmadd(Part a, Part b, Part c) { return Part(vfmaq_f32(float32x4_t(c), float32x4_t(a), float32x4_t(b))); }
inline Part fnmadd(Part a, Part b, Part c) { return Part(vfmsq_f32(float32x4_t(c), float32x4_t(a), float32x4_t(b))); }
// Not fmax and fmin: of a number and none, the second one is the result, as on x86.
inline Part max(Part a, Part b) { return a > b ? a : b; }
inline Part min(Part a, Part b) { return a < b ? a : b; }
inline Part whole(Part v) { return Part(vrndnq_f32(float32x4_t(v))); }
inline IntPart to_ints(Part v) { return IntPart(vcvtnq_s32_f32(float32x4_t(v))); }
inline IntPart part_of_bytes(const uint8_t* p) {
  uint32_t four;
  std::memcpy(&four, p, sizeof(four));
  const uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32(four));
  return IntPart(vmovl_u16(vget_low_u16(vmovl_u8(bytes))));
}

// int8: sdot multiplies four signed bytes of each lane.
using Small = int8_t;  // an activation
constexpr int kDeep = 4, kShift = 0;
constexpr int kUnrollInt8 = 1;
inline IntPart part_of_weights(const uint8_t* p) { return IntPart(vld1q_u8(p)); }
inline IntPart dot(IntPart sum, IntPart weights, IntPart activations) {
  return IntPart(vdotq_s32(int32x4_t(sum), int8x16_t(weights), int8x16_t(activations)));
}
inline void put_small(Small* p, const IntPart* sixteen) {
  const int16x8_t low = vcombine_s16(vmovn_s32(int32x4_t(sixteen[0])), vmovn_s32(int32x4_t(sixteen[1])));
  const int16x8_t high = vcombine_s16(vmovn_s32(int32x4_t(sixteen[2])), vmovn_s32(int32x4_t(sixteen[3])));
  vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}

inline void pause() { asm volatile("isb"); }  // `yield` takes no time on most cores

}  // namespace pagefleet
