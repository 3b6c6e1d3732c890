// Paged attention (Kwon et al., SOSP 2023) read straight from the pages, for prompt chunks and single tokens alike.
//
// Keys of one page and head lie as [page_size / 16][head_dim][16]: sixteen positions' scores come from head_dim
// multiply-adds and no sum across a register. Values lie as [page_size][head_dim]. A task is one sequence, one KV head
// and up to kRowsAttention rows (query tokens x the query heads that share the KV head), so keys and values are loaded
// once for all of them. Softmax is a running maximum and sum (Milakov and Gimelshein, 2018). A row's result does not depend
// on the other rows of its task or batch.
// Floor: a sequence's keys and values once per kRowsAttention rows.
#pragma once
#include <algorithm>
#include <limits>
#include <vector>

#include "linear.h"
#include "pool.h"
#include "vector.h"

namespace pagefleet {

constexpr int kMaxHeadDim = 256;
constexpr int64_t kChunk = 64;  // positions between two updates of the running maximum

struct Attention {
  const float* q;          // [tokens, heads, head_dim] with `q_stride` floats between tokens
  int64_t q_stride;
  float* out;              // [tokens, heads, head_dim]
  const void* keys;        // [pages, kv_heads, page_size / 16, head_dim, 16]
  const void* values;      // [pages, kv_heads, page_size, head_dim]
  const int32_t* table;    // [sequences, table_width]
  int64_t table_width;
  const int32_t* first;    // [sequences + 1]: a sequence's first token
  const int32_t* context;  // [sequences]: its positions so far, its tokens of this batch included
  int64_t sequences, heads, kv_heads, head_dim, page_size;
  int64_t window;          // positions that a token attends to, itself included; 0: all
  float scale;
  float cap;               // scores become cap tanh(score / cap); 0: they stay
  const float* sinks;      // [heads], or null: a score of each head that takes part in the softmax and has no value
};

// Where up to kChunk / 16 groups of sixteen positions lie.
template <typename T>
struct Chunk {
  const T* keys[kChunk / 16];
  const T* values[kChunk / 16];
};

// Groups of sixteen elements in one cache line.
template <typename T>
constexpr int kOfLine = int(kLine) / (16 * int(sizeof(T)));

// weight[r][16 * p...] = query[r] . key of P groups' positions, `chunk` from group `at` on. Meanwhile the `next`
// chunk's keys are fetched: they lie anywhere, so the hardware's prefetcher cannot predict them.
template <typename T, int R, int P>
void score(const float (*query)[kMaxHeadDim], int64_t dim, const Chunk<T>& chunk, const Chunk<T>& next, int at,
           float (*weight)[kChunk]) {
  Floats sum[R][P];
  UNROLLED for (int r = 0; r < R; ++r)
    for (int p = 0; p < P; ++p) sum[r][p] = spread(0.0f);
  for (int64_t d = 0; d < dim; ++d) {
    Floats key[P];
    for (int p = 0; p < P; ++p) key[p] = load(chunk.keys[at + p] + d * 16);
    if (d % kOfLine<T> == 0) {
      for (int p = 0; p < P; ++p) prefetch(next.keys[at + p] + d * 16);
    }
    UNROLLED for (int r = 0; r < R; ++r) {
      const Floats q = spread(query[r][d]);
      for (int p = 0; p < P; ++p) sum[r][p] = fmadd(q, key[p], sum[r][p]);
    }
  }
  UNROLLED for (int r = 0; r < R; ++r)
    for (int p = 0; p < P; ++p) store(weight[r] + (at + p) * 16, sum[r][p]);
}

// out[r][16 * step...] = shrink[r] times itself and the sum over the chunk's first `count` positions of weight[r] * value,
// S registers of each row. Beyond `count` lie other owners' values, maybe NaN. Meanwhile the `next` chunk's values are
// fetched.
template <typename T, int R, int S>
void weigh(float (*out)[kMaxHeadDim], int64_t dim, const Chunk<T>& chunk, const Chunk<T>& next, int64_t count, int64_t step,
           const float (*weight)[kChunk], const float* shrink) {
  Floats total[R][S];
  UNROLLED for (int r = 0; r < R; ++r)
    for (int s = 0; s < S; ++s)
      total[r][s] = load(out[r] + (step + s) * 16) * spread(shrink[r]);
  for (int64_t group = 0; group * 16 < count; ++group) {
    const T *values = chunk.values[group] + step * 16, *later = next.values[group] + step * 16;
    const int64_t most = std::min<int64_t>(16, count - group * 16);
    for (int64_t j = 0; j < most; ++j, values += dim, later += dim) {
      for (int s = 0; s < S; s += kOfLine<T>) prefetch(later + s * 16);
      Floats value[S];
      for (int s = 0; s < S; ++s) value[s] = load(values + s * 16);
      UNROLLED for (int r = 0; r < R; ++r) {
        const Floats w = spread(weight[r][group * 16 + j]);
        for (int s = 0; s < S; ++s) total[r][s] = fmadd(w, value[s], total[r][s]);
      }
    }
  }
  UNROLLED for (int r = 0; r < R; ++r)
    for (int s = 0; s < S; ++s) store(out[r] + (step + s) * 16, total[r][s]);
}

// R rows' running softmax over scores that are in units of ln 2.
template <int R>
struct Softmax {
  Floats sum[R];
  alignas(64) float top[16], shrink[16];  // the largest scores so far; the factors of the rows' earlier results

  Softmax() {
    for (int r = 0; r < R; ++r) sum[r] = spread(0.0f);
    // Finite: for a row without a visible position so far, lowest - lowest is 0 and -inf - lowest is -inf.
    store(top, spread(std::numeric_limits<float>::lowest()));
  }

  // A score without a value: before any position.
  void sink(int r, float score) {
    top[r] = score;
    sum[r] = keep(lanes(1), spread(1.0f));
  }

  // The scores of a chunk's `groups` become weights; positions outside of from..to get none.
  void take(float (*weight)[kChunk], int64_t groups, int64_t start, const int64_t* from, const int64_t* to) {
    const Floats none = spread(-std::numeric_limits<float>::infinity());
    alignas(64) float most[16];
    store(most, none);
    for (int r = 0; r < R; ++r) {
      const bool all = from[r] <= start && start + groups * 16 - 1 <= to[r];
      Floats highest = none;
      for (int64_t g = 0; g < groups; ++g) {
        Floats part = load(weight[r] + g * 16);
        if (!all) {
          const int64_t first = start + g * 16;
          part = select(between(from[r] - first, to[r] - first), part, none);
          store(weight[r] + g * 16, part);
        }
        highest = max(highest, part);
      }
      most[r] = reduce_max(highest);
    }
    const Floats before = load(top), now = max(before, load(most));
    store(top, now);
    store(shrink, exp2(before - now));
    for (int r = 0; r < R; ++r) {
      const Floats highest = spread(top[r]);
      sum[r] = sum[r] * spread(shrink[r]);
      for (int64_t g = 0; g < groups; ++g) {
        const Floats weights = exp2(load(weight[r] + g * 16) - highest);
        store(weight[r] + g * 16, weights);
        sum[r] = sum[r] + weights;
      }
    }
  }
};

// The chunk at `start` of a sequence's KV head; groups outside of begin..last lie where some inside do.
template <typename T>
Chunk<T> locate(const Attention& a, int64_t sequence, int64_t kv_head, int64_t start, int64_t begin, int64_t last) {
  const int32_t* pages = a.table + sequence * a.table_width;
  Chunk<T> chunk;
  for (int64_t g = 0; g < kChunk / 16; ++g) {
    const int64_t at = std::max(begin, std::min(last, start + g * 16)) / 16 * 16;
    const int64_t place = (int64_t(pages[at / a.page_size]) * a.kv_heads + kv_head) * a.page_size + at % a.page_size;
    chunk.keys[g] = static_cast<const T*>(a.keys) + place * a.head_dim;
    chunk.values[g] = static_cast<const T*>(a.values) + place * a.head_dim;
  }
  return chunk;
}

// Gemma 2's bound on scores, which are in units of ln 2 as `cap` is.
__attribute__((noinline, cold)) inline void soften(float* scores, int64_t count, float cap) {
  const Floats most = spread(cap), inverse = spread(1.0f / cap);
  for (int64_t i = 0; i < count; i += 16)
    store(scores + i, tanh(load(scores + i) * inverse) * most);
}

inline int64_t window_begin(const Attention& a, int64_t position) {
  return a.window > 0 ? std::max<int64_t>(0, position - a.window + 1) : 0;
}

// `following`: the chunk that is read after this one's rows.
template <typename T, int R>
void attend_rows(const Attention& a, int64_t sequence, int64_t kv_head, const int64_t* token, const int64_t* head,
                 const Chunk<T>& following) {
  // Enough sums at once that none waits for itself, and no more than there are registers.
  constexpr int together = std::max(1, std::min(4, kSums / R / 2 * 2));
  const int64_t dim = a.head_dim, offset = a.context[sequence] - a.first[sequence + 1];  // position = token + offset
  alignas(64) float query[R][kMaxHeadDim], out[R][kMaxHeadDim], weight[R][kChunk];
  Softmax<R> softmax;
  const float scale = a.scale * 1.44269504088896341f;  // scores are exponents of 2
  int64_t last = 0, begin = std::numeric_limits<int64_t>::max(), from[R], to[R];
  for (int r = 0; r < R; ++r) {
    const float* q = a.q + token[r] * a.q_stride + head[r] * dim;
    for (int64_t d = 0; d < dim; ++d) query[r][d] = q[d] * scale, out[r][d] = 0;
    to[r] = token[r] + offset;
    from[r] = window_begin(a, to[r]);
    last = std::max(last, to[r]), begin = std::min(begin, from[r]);
    if (a.sinks) softmax.sink(r, a.sinks[head[r]] * 1.44269504088896341f);
  }
  Chunk<T> chunk = locate<T>(a, sequence, kv_head, begin / kChunk * kChunk, begin, last);
  for (int64_t start = begin / kChunk * kChunk; start <= last; start += kChunk) {
    const int64_t count = std::min<int64_t>(kChunk, last - start + 1), groups = (count + 15) / 16;
    const Chunk<T> next =
        start + kChunk <= last ? locate<T>(a, sequence, kv_head, start + kChunk, begin, last) : following;
    tiles<together>(groups, [&](auto size, int64_t at) {
      score<T, R, size()>(query, dim, chunk, next, int(at), weight);
    });
    if (a.cap > 0) {
      for (int r = 0; r < R; ++r) soften(weight[r], groups * 16, a.cap * 1.44269504088896341f);
    }
    softmax.take(weight, groups, start, from, to);
    tiles<together>(dim / 16, [&](auto size, int64_t at) {
      weigh<T, R, size()>(out, dim, chunk, next, count, at, weight, softmax.shrink);
    });
    chunk = next;
  }
  for (int r = 0; r < R; ++r) {
    const Floats inverse = spread(1.0f / reduce_add(softmax.sum[r]));
    float* y = a.out + (token[r] * a.heads + head[r]) * dim;
    for (int64_t d = 0; d < dim; d += 16) store(y + d, load(out[r] + d) * inverse);
  }
}

template <typename T>
void attend(Pool& pool, const Attention& a) {
  const int64_t group = a.heads / a.kv_heads;
  // tasks[i]: how many tasks come before those of sequence i; each KV head of a sequence has `parts` of them.
  std::vector<int64_t> tasks(a.sequences + 1, 0);
  for (int64_t s = 0; s < a.sequences; ++s) {
    const int64_t rows = (a.first[s + 1] - a.first[s]) * group;
    tasks[s + 1] = tasks[s] + a.kv_heads * ((rows + kRowsAttention - 1) / kRowsAttention);
  }
  parallel(pool, tasks[a.sequences], [&](int64_t task) {
    const auto place = [&](int64_t one) {
      const int64_t s = std::upper_bound(tasks.begin(), tasks.end(), one) - tasks.begin() - 1;
      return std::pair(s, (one - tasks[s]) / ((tasks[s + 1] - tasks[s]) / a.kv_heads));
    };
    const auto [s, kv_head] = place(task);
    const int64_t rows = (a.first[s + 1] - a.first[s]) * group, parts = (tasks[s + 1] - tasks[s]) / a.kv_heads;
    const int64_t begin = (task - tasks[s]) % parts * kRowsAttention;
    const auto [other, other_head] = place(std::min(task + pool.threads(), tasks[a.sequences] - 1));
    const int64_t from = window_begin(a, a.context[other] - (a.first[other + 1] - a.first[other]));
    const auto following =
        locate<T>(a, other, other_head, from / kChunk * kChunk, from, a.context[other] - 1);
    tiles<kRowsAttention>(std::min<int64_t>(kRowsAttention, rows - begin), [&, s = s, kv_head = kv_head](auto size, int64_t at) {
      int64_t token[size()], head[size()];
      for (int r = 0; r < size(); ++r) {
        token[r] = a.first[s] + (begin + at + r) / group;
        head[r] = kv_head * group + (begin + at + r) % group;
      }
      attend_rows<T, size()>(a, s, kv_head, token, head, following);
    });
  });
}

}  // namespace pagefleet
