// One token per row: the largest logit at temperature 0, else from softmax(logits / temperature), cut by top-k, top-p and
// min-p in this order, by inversion:
// the first token, in the order of ids, at which the sum of the remaining probabilities passes `uniform` of their total.
// Where there is no distribution (a logit that is not a number, a largest one that is infinite, no candidate left) it is
// the largest logit, as at temperature 0: the first of equals, without logits that are no numbers; 0 where none is above
// -inf.
// Floor: a row's logits read twice; rows run in parallel.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "pool.h"
#include "vector.h"

namespace pagefleet {

struct Draw {
  int64_t row;
  double uniform;  // [0, 1)
  float temperature, top_p, min_p;
  int32_t top_k;   // 0: off
  int32_t token;   // the result
};

constexpr int64_t kSpan = 512;  // of logits whose probabilities are summed as one

using Candidate = std::pair<float, int32_t>;  // score, id

inline bool likelier(const Candidate& a, const Candidate& b) {
  return a.first != b.first ? a.first > b.first : a.second < b.second;
}

inline double exp_sum(const float* logits, int64_t count, Floats inverse, Floats top) {
  Floats sum = spread(0.0f);
  for (int64_t i = 0; i < count; i += 16) {
    const Floats score = load(logits + i, count - i) * inverse - top;
    sum = sum + keep(lanes(count - i), exp(score));
  }
  return reduce_add(sum);
}

// The candidates within `depth` of the top score.
inline void gather(const float* logits, int64_t vocab, float inverse, float top, float depth,
                   std::vector<Candidate>& out) {
  out.clear();
  for (int64_t i = 0; i < vocab; ++i)
    if (const float score = logits[i] * inverse - top; score >= -depth) out.emplace_back(score, int32_t(i));
}

inline int32_t draw_whole(const float* logits, int64_t vocab, float inverse, float top, double uniform) {
  std::vector<double> sums((vocab + kSpan - 1) / kSpan);
  double total = 0;
  for (size_t s = 0; s < sums.size(); ++s)
    total += sums[s] = exp_sum(logits + s * kSpan, std::min<int64_t>(kSpan, vocab - s * kSpan),
                               spread(inverse), spread(top));
  double left = uniform * total;
  size_t span = 0;
  while (span + 1 < sums.size() && left >= sums[span]) left -= sums[span++];
  int32_t last = -1;
  for (int64_t i = span * kSpan; i < vocab; ++i) {
    const float p = std::exp(logits[i] * inverse - top);
    if (p <= 0) continue;
    last = int32_t(i);
    if ((left -= p) < 0) return last;
  }
  return last;  // rounding at the very end of the distribution
}

inline int32_t largest(const float* logits, int64_t vocab) {
  const Floats none = spread(-std::numeric_limits<float>::infinity());
  Floats most = none;
  Ints best = spread(0), at = numbers();
  for (int64_t i = 0; i < vocab; i += 16) {
    const Floats values = load(logits + i, vocab - i, none);
    const Mask better = greater(values, most);
    most = select(better, values, most);
    best = select(better, at, best);
    at = plus(at, spread(16));
  }
  return reduce_min(equal(most, spread(reduce_max(most))), best);  // the first of equals
}

inline void sample(const float* logits, int64_t vocab, Draw& draw) {
  if (draw.temperature <= 0) {
    draw.token = largest(logits, vocab);
    return;
  }
  const float inverse = 1.0f / draw.temperature;
  const Floats none = spread(-std::numeric_limits<float>::infinity());
  Floats most = none;
  Mask strange = lanes(0);  // with a logit that is not a number
  for (int64_t i = 0; i < vocab; i += 16) {
    const Floats values = load(logits + i, vocab - i, none);
    strange = either(strange, not_a_number(values));
    most = max(most, values);
  }
  const float top = reduce_max(most) * inverse;
  if (any(strange) || !std::isfinite(top)) {
    draw.token = largest(logits, vocab);
    return;
  }
  const bool k_cuts = draw.top_k > 0 && draw.top_k < vocab, p_cuts = draw.top_p < 1;
  if (!k_cuts && !p_cuts && draw.min_p <= 0) {
    draw.token = draw_whole(logits, vocab, inverse, top, draw.uniform);
    if (draw.token < 0) draw.token = largest(logits, vocab);  // rounding led beyond the last one that has a probability
    return;
  }
  thread_local std::vector<Candidate> candidates;
  candidates.clear();
  double total = -1;  // of the probabilities before top-p cuts
  if (k_cuts) {
    for (float depth = 8; candidates.empty() || int64_t(candidates.size()) < draw.top_k; depth *= 4) {
      gather(logits, vocab, inverse, top, depth, candidates);
      if (depth > 1e6f) break;
    }
    if (int64_t(candidates.size()) > draw.top_k) {
      std::nth_element(candidates.begin(), candidates.begin() + draw.top_k - 1, candidates.end(), likelier);
      candidates.resize(draw.top_k);
    }
  } else if (p_cuts) {
    total = 0;
    for (int64_t i = 0; i < vocab; i += kSpan)
      total += exp_sum(logits + i, std::min(kSpan, vocab - i), spread(inverse), spread(top));
    for (float depth = 8;; depth *= 2) {
      gather(logits, vocab, inverse, top, depth, candidates);
      double mass = 0;
      for (const auto& candidate : candidates) mass += std::exp(candidate.first);
      if (mass >= draw.top_p * total || depth > 1e6f) break;
    }
  } else {
    gather(logits, vocab, inverse, top, -std::log(draw.min_p), candidates);
  }
  if (p_cuts) {
    std::sort(candidates.begin(), candidates.end(), likelier);
    if (total < 0) {
      total = 0;
      for (const auto& candidate : candidates) total += std::exp(candidate.first);
    }
    double mass = 0;
    size_t count = 0;
    while (count < candidates.size() && (count == 0 || mass < draw.top_p * total)) mass += std::exp(candidates[count++].first);
    candidates.resize(count);
  }
  if (draw.min_p > 0) {
    const float least = std::log(draw.min_p);
    candidates.erase(std::remove_if(candidates.begin(), candidates.end(), [&](const Candidate& c) { return c.first < least; }), candidates.end());
  }
  if (candidates.empty()) {
    draw.token = largest(logits, vocab);
    return;
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) { return a.second < b.second; });
  double mass = 0;
  for (const auto& candidate : candidates) mass += std::exp(candidate.first);
  double left = draw.uniform * mass;
  draw.token = candidates.back().second;
  for (const auto& candidate : candidates) {
    if ((left -= std::exp(candidate.first)) < 0) {
      draw.token = candidate.second;
      break;
    }
  }
}

}  // namespace pagefleet
