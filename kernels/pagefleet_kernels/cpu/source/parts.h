// Sixteen lanes in several registers, by the vector extensions of GCC and Clang and what the instruction set's file adds.
// Sums across lanes add in the order of AVX-512's, so that all instruction sets have the same results.
#pragma once
#include <cstdint>
#include <cstring>
#include <limits>

namespace pagefleet {

using Half = uint16_t;  // IEEE binary16
constexpr int kParts = 16 / kWidth;

struct Floats {
  Part part[kParts];
};
struct Ints {
  IntPart part[kParts];
};
using Mask = Ints;     // all bits of a lane that is in it
using Weights = Ints;  // kDeep of k in each lane

// By hand, not as a loop: GCC keeps an array in registers only when it has unrolled every loop over it early.
template <typename Lanes, typename Body>
__attribute__((always_inline)) inline Lanes each(Body body) {
  if constexpr (kParts == 2) return {{body(0), body(1)}};
  else return {{body(0), body(1), body(2), body(3)}};
}
template <typename Body>
__attribute__((always_inline)) inline Floats floats(Body body) {
  return each<Floats>(body);
}
template <typename Body>
__attribute__((always_inline)) inline Ints ints(Body body) {
  return each<Ints>(body);
}

inline Floats spread(float v) {
  const Part part = part_of(v);
  return floats([&](int) { return part; });
}
inline Ints spread(int32_t v) {
  const IntPart part = IntPart{} + v;
  return ints([&](int) { return part; });
}

inline Floats operator+(Floats a, Floats b) {
  return floats([&](int i) { return a.part[i] + b.part[i]; });
}
inline Floats operator-(Floats a, Floats b) {
  return floats([&](int i) { return a.part[i] - b.part[i]; });
}
inline Floats operator*(Floats a, Floats b) {
  return floats([&](int i) { return a.part[i] * b.part[i]; });
}
inline Floats operator/(Floats a, Floats b) {
  return floats([&](int i) { return a.part[i] / b.part[i]; });
}
inline Floats fmadd(Floats a, Floats b, Floats c) {
  return floats([&](int i) { return fmadd(a.part[i], b.part[i], c.part[i]); });
}
inline Floats fnmadd(Floats a, Floats b, Floats c) {
  return floats([&](int i) { return fnmadd(a.part[i], b.part[i], c.part[i]); });
}
inline Floats max(Floats a, Floats b) {
  return floats([&](int i) { return max(a.part[i], b.part[i]); });
}
inline Floats min(Floats a, Floats b) {
  return floats([&](int i) { return min(a.part[i], b.part[i]); });
}
inline Floats absolute(Floats v) {
  return floats([&](int i) { return Part(IntPart(v.part[i]) & 0x7fffffff); });
}
inline Floats whole(Floats v) {
  return floats([&](int i) { return whole(v.part[i]); });
}
inline Ints to_ints(Floats v) {  // to the nearest, of two the even one
  return ints([&](int i) { return to_ints(v.part[i]); });
}
inline Floats to_floats(Ints v) {
  return floats([&](int i) { return __builtin_convertvector(v.part[i], Part); });
}
// In two steps, of which only the last one can round: a power below 2^-126 is no normal number.
inline Floats times_power_of_2(Floats v, Floats power) {
  return floats([&](int i) {
    const IntPart all = to_ints(power.part[i]), first = all >> 1;
    return v.part[i] * Part((first + 127) << 23) * Part((all - first + 127) << 23);
  });
}

// The lanes' values i and i + 8 become one, then i and i + 4, and so on.
template <typename Lanes, typename Join>
auto reduce(Lanes v, Join join) {
  for (int step = kParts / 2; step > 0; step /= 2)
    for (int i = 0; i < step; ++i) v.part[i] = join(v.part[i], v.part[i + step]);
  auto last = v.part[0];
  for (int step = kWidth / 2; step > 0; step /= 2)
    for (int i = 0; i < step; ++i) last[i] = join(last[i], last[i + step]);
  return last[0];
}
inline float reduce_max(Floats v) {
  return reduce(v, [](auto a, auto b) { return a > b ? a : b; });
}
inline float reduce_add(Floats v) {
  return reduce(v, [](auto a, auto b) { return a + b; });
}

inline Ints plus(Ints a, Ints b) {
  return ints([&](int i) { return a.part[i] + b.part[i]; });
}
inline int32_t reduce_add(Ints v) {
  return reduce(v, [](auto a, auto b) { return a + b; });
}
inline Ints numbers() {
  Ints v;
  for (int lane = 0; lane < 16; ++lane) v.part[lane / kWidth][lane % kWidth] = lane;
  return v;
}

// Lanes from..to.
inline Mask between(int64_t from, int64_t to) {
  const auto within = [](int64_t lane) { return int32_t(lane < -1 ? -1 : lane > 16 ? 16 : lane); };
  const Ints all = numbers();
  return ints([&](int i) { return (all.part[i] >= within(from)) & (all.part[i] <= within(to)); });
}
inline Mask lanes(int64_t count) { return between(0, count - 1); }  // 0..count - 1
inline Mask greater(Floats a, Floats b) {
  return ints([&](int i) { return a.part[i] > b.part[i]; });
}
inline Mask equal(Floats a, Floats b) {
  return ints([&](int i) { return a.part[i] == b.part[i]; });
}
inline Mask not_a_number(Floats v) {
  return ints([&](int i) { return v.part[i] != v.part[i]; });
}
inline Mask either(Mask a, Mask b) {
  return ints([&](int i) { return a.part[i] | b.part[i]; });
}
inline bool any(Mask mask) {
  return reduce(mask, [](auto a, auto b) { return a | b; }) != 0;
}
inline Floats keep(Mask mask, Floats v) {  // 0 in the other lanes
  return floats([&](int i) { return Part(mask.part[i] & IntPart(v.part[i])); });
}
inline Floats select(Mask mask, Floats yes, Floats no) {
  return floats([&](int i) { return mask.part[i] ? yes.part[i] : no.part[i]; });
}
inline Ints select(Mask mask, Ints yes, Ints no) {
  return ints([&](int i) { return mask.part[i] ? yes.part[i] : no.part[i]; });
}
inline int32_t reduce_min(Mask mask, Ints v) {
  const Ints kept = select(mask, v, spread(std::numeric_limits<int32_t>::max()));
  return reduce(kept, [](auto a, auto b) { return a < b ? a : b; });
}

// A part at any address. std::memcpy would do, but GCC moves sixteen bytes as one integer, and what it has moved so stays
// in memory.
typedef float Anywhere __attribute__((vector_size(4 * kWidth), aligned(4), may_alias));
inline Floats load(const float* p) {
  return floats([&](int i) { return Part(*reinterpret_cast<const Anywhere*>(p + i * kWidth)); });
}
inline Floats load(const float* p, int64_t count, Floats beyond = spread(0.0f)) {
  if (count >= 16) return load(p);
  if (count > 0) std::memcpy(&beyond, p, size_t(count) * sizeof(float));
  return beyond;
}
inline Floats load(const Half* p) {
  return floats([&](int i) { return part_of_halves(p + i * kWidth); });
}
inline void store(float* p, Floats v) {
  for (int i = 0; i < kParts; ++i) *reinterpret_cast<Anywhere*>(p + i * kWidth) = v.part[i];
}
inline void store(float* p, Floats v, int64_t count) {
  if (count >= 16) return store(p, v);
  if (count > 0) std::memcpy(p, &v, size_t(count) * sizeof(float));
}
inline void store(Half* p, Floats v) {
  for (int i = 0; i < kParts; ++i) put_halves(p + i * kWidth, v.part[i]);
}
inline void store1(float* p, float v) { *p = v; }
inline void store1(Half* p, float v) { *p = half_of(v); }

// Stored weights: sixteen bytes; the lower and the upper bfloat16 of each lane; eight codes of four bits in each lane.
inline Floats load_bytes(const uint8_t* p) {
  return to_floats(ints([&](int i) { return part_of_bytes(p + i * kWidth); }));
}
inline Ints load_ints(const void* p) {
  return ints([&](int i) { return IntPart(*reinterpret_cast<const Anywhere*>(static_cast<const uint8_t*>(p) + i * sizeof(Part))); });
}
inline Floats lower_bfloats(Ints both) {
  return floats([&](int i) { return Part(both.part[i] << 16); });
}
inline Floats upper_bfloats(Ints both) {
  return floats([&](int i) { return Part(both.part[i] & int32_t(0xffff0000u)); });
}
inline Floats code(Ints eight, int index) {
  return to_floats(ints([&](int i) { return eight.part[i] >> (4 * index) & 15; }));
}

// int8
inline Weights load_weights(const uint8_t* p) {
  return ints([&](int i) { return part_of_weights(p + i * kWidth * kDeep); });
}
inline Weights lower_codes(Weights both) {  // what a shift moves from one weight to the next one is masked
  return ints([&](int i) { return both.part[i] & (kDeep == 4 ? 0x0f0f0f0f : 0x000f000f); });
}
inline Weights upper_codes(Weights both) {
  return lower_codes(ints([&](int i) { return both.part[i] >> 4; }));
}
inline Ints dot(Ints sum, Weights weights, Ints activations) {
  return ints([&](int i) { return dot(sum.part[i], weights.part[i], activations.part[i]); });
}
inline void store(Small* p, Ints v) { put_small(p, v.part); }

}  // namespace pagefleet
