// Paged attention (Kwon et al., SOSP 2023) read straight from the pages, for prompt chunks and single tokens alike.
//
// Keys of one page and head lie as [page_size / 16][head_dim][16]: sixteen positions' scores come from head_dim
// multiply-adds and no sum across a register. Values lie as [page_size][head_dim]. A task is one sequence, one KV head
// and up to twelve rows (query tokens x the query heads that share the KV head), so keys and values are loaded once
// for all of them. Softmax is kept as a running maximum and sum (Milakov and Gimelshein, 2018). A row's result does
// not depend on what else is in its task or batch.
// Floor: a sequence's keys and values once per twelve rows.
#pragma once
#include <algorithm>
#include <limits>
#include <vector>

#include "linear.h"

#include "pool.h"
#include "vector.h"

namespace pagefleet {

constexpr int kRowsAttention = 12;
constexpr int kHeadMost = 256;

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
  int64_t window;          // positions that a token sees, itself included; 0: all
  float scale;
};

template <typename T>
void fetch(const T* begin, int64_t count) {
  const char* bytes = reinterpret_cast<const char*>(begin);
  for (int64_t i = 0; i < count * int64_t(sizeof(T)); i += 64) _mm_prefetch(bytes + i, _MM_HINT_T0);
}

template <typename T, int R>
void attend_rows(const Attention& a, int64_t sequence, int64_t kv_head, const int64_t* token, const int64_t* head) {
  const int64_t dim = a.head_dim, page_size = a.page_size, steps = dim / 16;
  const int64_t offset = a.context[sequence] - a.first[sequence + 1];  // position = token + offset
  alignas(64) float query[R][kHeadMost], out[R][kHeadMost], weight[R][16];
  float top[R], sum[R];
  int64_t last = 0, begin = std::numeric_limits<int64_t>::max(), from[R], to[R];
  for (int r = 0; r < R; ++r) {
    const float* q = a.q + token[r] * a.q_stride + head[r] * dim;
    for (int64_t d = 0; d < dim; ++d) query[r][d] = q[d] * a.scale, out[r][d] = 0;
    to[r] = token[r] + offset;
    from[r] = a.window > 0 ? std::max<int64_t>(0, to[r] - a.window + 1) : 0;
    last = std::max(last, to[r]), begin = std::min(begin, from[r]);
    top[r] = -std::numeric_limits<float>::infinity(), sum[r] = 0;
  }
  const int32_t* pages = a.table + sequence * a.table_width;
  const __m512 none = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  for (int64_t start = begin / 16 * 16; start <= last; start += 16) {
    const int64_t page = int64_t(pages[start / page_size]) * a.kv_heads + kv_head, within = start % page_size;
    const T* keys = static_cast<const T*>(a.keys) + (page * page_size + within) * dim;
    const T* values = static_cast<const T*>(a.values) + (page * page_size + within) * dim;
    // The next sixteen positions lie anywhere: no hardware foresees that. They are asked for while these are used.
    const int64_t after = std::min(start + 16, last);
    const int64_t place = (int64_t(pages[after / page_size]) * a.kv_heads + kv_head) * page_size + after % page_size / 16 * 16;
    const T *next_keys = static_cast<const T*>(a.keys) + place * dim;
    const T *next_values = static_cast<const T*>(a.values) + place * dim;
    // Two sums each, of even and of odd elements: one would wait for itself. The same for any R: a row's sums are its own.
    __m512 score[R], odd[R];
    for (int r = 0; r < R; ++r) score[r] = odd[r] = _mm512_setzero_ps();
    for (int64_t d = 0; d < dim; d += 2) {
      const __m512 key = load16(keys + d * 16), next = load16(keys + d * 16 + 16);
      fetch(next_keys + d * 16, 32);
      fetch(next_values + d * 16, 32);
      for (int r = 0; r < R; ++r) {
        score[r] = _mm512_fmadd_ps(_mm512_set1_ps(query[r][d]), key, score[r]);
        odd[r] = _mm512_fmadd_ps(_mm512_set1_ps(query[r][d + 1]), next, odd[r]);
      }
    }
    for (int r = 0; r < R; ++r) score[r] = _mm512_add_ps(score[r], odd[r]);
    const __m512i position = _mm512_add_epi32(lane, _mm512_set1_epi32(int(start)));
    for (int r = 0; r < R; ++r) {
      const __mmask16 seen = _mm512_cmple_epi32_mask(position, _mm512_set1_epi32(int(to[r]))) &
                             _mm512_cmpge_epi32_mask(position, _mm512_set1_epi32(int(from[r])));
      score[r] = _mm512_mask_blend_ps(seen, none, score[r]);
      const float most = seen ? std::max(top[r], _mm512_reduce_max_ps(score[r])) : top[r];
      if (most != top[r]) {
        const float shrink = _mm512_cvtss_f32(exp16(_mm512_set1_ps(top[r] - most)));
        sum[r] *= shrink;
        for (int64_t d = 0; d < dim; d += 16)
          _mm512_store_ps(out[r] + d, _mm512_mul_ps(_mm512_load_ps(out[r] + d), _mm512_set1_ps(shrink)));
        top[r] = most;
      }
      const __m512 p = _mm512_maskz_mov_ps(seen, exp16(_mm512_sub_ps(score[r], _mm512_set1_ps(seen ? most : 0.0f))));
      sum[r] += _mm512_reduce_add_ps(p);
      _mm512_store_ps(weight[r], p);
    }
    const int64_t count = std::min<int64_t>(16, last - start + 1);  // beyond lie other owners' values, maybe NaN
    for (int64_t step = 0; step < steps; ++step) {
      __m512 total[R];
      for (int r = 0; r < R; ++r) total[r] = _mm512_load_ps(out[r] + step * 16), odd[r] = _mm512_setzero_ps();
      int64_t j = 0;
      for (; j + 2 <= count; j += 2) {
        const __m512 value = load16(values + j * dim + step * 16), next = load16(values + (j + 1) * dim + step * 16);
        for (int r = 0; r < R; ++r) {
          total[r] = _mm512_fmadd_ps(_mm512_set1_ps(weight[r][j]), value, total[r]);
          odd[r] = _mm512_fmadd_ps(_mm512_set1_ps(weight[r][j + 1]), next, odd[r]);
        }
      }
      if (j < count) {
        const __m512 value = load16(values + j * dim + step * 16);
        for (int r = 0; r < R; ++r) total[r] = _mm512_fmadd_ps(_mm512_set1_ps(weight[r][j]), value, total[r]);
      }
      for (int r = 0; r < R; ++r) _mm512_store_ps(out[r] + step * 16, _mm512_add_ps(total[r], odd[r]));
    }
  }
  for (int r = 0; r < R; ++r) {
    const __m512 inverse = _mm512_set1_ps(1.0f / sum[r]);
    float* y = a.out + (token[r] * a.heads + head[r]) * dim;
    for (int64_t d = 0; d < dim; d += 16) _mm512_storeu_ps(y + d, _mm512_mul_ps(_mm512_load_ps(out[r] + d), inverse));
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
    const int64_t s = std::upper_bound(tasks.begin(), tasks.end(), task) - tasks.begin() - 1;
    const int64_t rows = (a.first[s + 1] - a.first[s]) * group;
    const int64_t parts = (rows + kRowsAttention - 1) / kRowsAttention, own = task - tasks[s];
    const int64_t kv_head = own / parts, begin = own % parts * kRowsAttention;
    tiles<kRowsAttention>(std::min<int64_t>(kRowsAttention, rows - begin), [&](auto size, int64_t at) {
      int64_t token[size()], head[size()];
      for (int r = 0; r < size(); ++r) {
        token[r] = a.first[s] + (begin + at + r) / group;
        head[r] = kv_head * group + (begin + at + r) % group;
      }
      attend_rows<T, size()>(a, s, kv_head, token, head);
    });
  });
}

}  // namespace pagefleet
