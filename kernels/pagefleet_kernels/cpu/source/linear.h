// y [rows, n] (+)= x [rows, k] w^T + bias with weights packed once: what the products of int8.h and float.h share.
//
// Floor: the packed bytes read once per kTaskRows rows; rows * k * n multiply-adds.
#pragma once
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "memory.h"
#include "pool.h"
#include "vector.h"

namespace pagefleet {

constexpr int64_t kColumns = 32;  // of one packed block: two registers

// How weights are kept. kCodes4 and kCodes8: scale * code + offset, with a scale and an offset for each row and group.
enum class Kept : int64_t { kFloat = 0, kInt8 = 1, kCodes4 = 2, kCodes8 = 3, kBfloat16 = 4, kHalf = 5 };

struct Linear {
  int64_t n, k;
  Kept kept;
  int64_t group;         // elements of k that share a scale; 0 where there are none
  int64_t blocks = 0, groups = 0, block_bytes = 0;
  Array<uint8_t> packed = {};  // [blocks][block_bytes]
  Array<float> bias = {};      // [blocks * 32], or empty

  const uint8_t* block(int64_t index) const { return packed.data() + index * block_bytes; }
  uint8_t* block(int64_t index) { return packed.data() + index * block_bytes; }

  Ahead ahead(int64_t index) const { return {reinterpret_cast<const char*>(block(index)), block_bytes}; }

  // Columns of a block that are there.
  int64_t columns(int64_t index) const { return std::min(kColumns, n - index * kColumns); }

  void allocate(int64_t bytes_of_block) {
    block_bytes = bytes_of_block;
    packed.assign(blocks * block_bytes, 0);
  }
};

inline void finish(const Linear& linear, float* y, int64_t block, int half, __m512 value, bool accumulate) {
  const int64_t column = block * kColumns + half * 16;
  const __mmask16 mask = lanes(std::max<int64_t>(0, linear.n - column));
  if (!linear.bias.empty()) value = _mm512_add_ps(value, _mm512_loadu_ps(linear.bias.data() + column));
  if (accumulate) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, y + column));
  _mm512_mask_storeu_ps(y + column, mask, value);
}

// Calls body(size, first row) over `rows` rows: size() is MOST, and for the last call what is left.
template <int MOST, typename Body>
void tiles(int64_t rows, Body&& body) {
  int64_t row = 0;
  for (; row + MOST <= rows; row += MOST) body(std::integral_constant<int, MOST>(), row);
  if constexpr (MOST > 1) {
    if (row < rows) tiles<MOST - 1>(rows - row, [&](auto size, int64_t at) { body(size, row + at); });
  }
}

// Calls body(block, first row, rows, ahead) over all blocks and rows, at most `most` of these at a time. `ahead` is the
// block that this thread will probably have next, when that is another one.
template <typename Body>
void by_tasks(Pool& pool, const Linear& linear, int64_t rows, int64_t most, Body&& body) {
  const int64_t parts = (rows + most - 1) / most;
  parallel(pool, linear.blocks * parts, [&](int64_t task) {
    const int64_t begin = task % parts * most, block = task / parts;
    const int64_t next = std::min(linear.blocks - 1, (task + pool.threads()) / parts);
    body(block, begin, std::min(most, rows - begin), next == block ? Ahead{} : linear.ahead(next));
  });
}

}  // namespace pagefleet
