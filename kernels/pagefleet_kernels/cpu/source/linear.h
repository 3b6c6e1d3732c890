// y [rows, n] = x [rows, k] w^T + bias with weights packed once: the shared part of the products in int8.h and float.h.
//
// Floor: the packed bytes read once per task's rows; rows * k * n multiply-adds.
#pragma once
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "memory.h"
#include "pool.h"
#include "vector.h"

namespace pagefleet {

constexpr int64_t kColumns = 32;  // of one packed block: twice sixteen lanes

// How weights are stored. kCodes4 and kCodes8: scale * code + offset, with a scale and an offset for each row and group;
// kCodes4Int8: the same, for int8 activations.
enum class Storage : int64_t { kFloat = 0, kInt8 = 1, kCodes4 = 2, kCodes8 = 3, kBfloat16 = 4, kHalf = 5, kCodes4Int8 = 6 };

// The use of a product: it is y [rows, n], is added to y, or, for one gated by SiLU, silu(first half) * second half is
// y [rows, n / 2]. Other activations follow their product: a branch to them here would cost every product registers.
enum class Into { kSet, kAdd, kGate };

struct Input {
  const float* x;  // [rows, k]
  // Where it is given, rows are normalised by it first.
  const float* norm = nullptr;  // [k]
  float epsilon = 0;
};

// A packed weight. A gated one has two halves of n / 2 rows, and a block's second half has the same columns of the
// second half.
struct Linear {
  int64_t n, k;
  Storage storage;
  int64_t group;  // elements of k that share a scale; 0 where there are none
  Activation activation;  // of a gated one
  int64_t blocks = 0, groups = 0, block_bytes = 0;
  bool half_ends = false;  // of kCodes4Int8: scales and offsets are float16
  Bytes packed = {};       // [blocks][block_bytes]
  Array<float> bias = {};  // [blocks * 32], or empty

  bool gated() const { return activation != Activation::kNone; }

  const uint8_t* block(int64_t index) const { return packed.get() + index * block_bytes; }
  uint8_t* block(int64_t index) { return packed.get() + index * block_bytes; }

  Ahead ahead(int64_t index) const { return {reinterpret_cast<const char*>(block(index)), block_bytes}; }

  // The first column of a half of a block, and how many are there.
  int64_t column(int64_t index, int half) const { return gated() ? index * 16 + half * (n / 2) : index * kColumns + half * 16; }
  int64_t columns(int64_t index, int half) const {
    const int64_t end = gated() && half == 0 ? n / 2 : n;
    return std::max<int64_t>(0, std::min<int64_t>(16, end - column(index, half)));
  }

  // Calls body(place in the block, row of the weight) for the rows that a block holds.
  template <typename Body>
  void rows_of(int64_t index, Body body) const {
    for (int half = 0; half < 2; ++half)
      for (int64_t i = 0; i < columns(index, half); ++i) body(half * 16 + i, column(index, half) + i);
  }

  // Of kCodes4Int8: the bytes of a group's codes, its 32 scales and its 32 offsets.
  int64_t code_group_bytes() const {
    return kColumns * (group / 2 + 2 * int64_t(half_ends ? sizeof(Half) : sizeof(float)));
  }

  // Sixteen of a group's scales or offsets from `index` on, and one.
  Floats end(const uint8_t* ends, int64_t index) const {
    return half_ends ? load(reinterpret_cast<const Half*>(ends) + index) : load(reinterpret_cast<const float*>(ends) + index);
  }
  void set_end(uint8_t* ends, int64_t index, float value) const {
    if (half_ends) store1(reinterpret_cast<Half*>(ends) + index, value);
    else store1(reinterpret_cast<float*>(ends) + index, value);
  }
};

// A part of a weight's rows, so many bytes from one another.
struct Rectangle {
  const char* begin;
  int64_t rows, stride;
};

// The rows of a weight [n, k], one address each: parts that lie below one another need not lie so in memory.
using Rows = const void* const*;

inline std::vector<const void*> rows_of(const Rectangle* parts, int64_t count) {
  std::vector<const void*> rows;
  for (const Rectangle* part = parts; part < parts + count; ++part)
    for (int64_t row = 0; row < part->rows; ++row) rows.push_back(part->begin + row * part->stride);
  return rows;
}

// Makes the blocks, of zeros, and calls body(block) for each.
template <typename Body>
void pack_blocks(Pool& pool, Linear& linear, int64_t bytes_of_block, Body body) {
  linear.block_bytes = bytes_of_block;
  linear.packed = unwritten(linear.blocks * bytes_of_block);
  parallel(pool, linear.blocks, [&](int64_t block) {
    std::memset(linear.block(block), 0, size_t(bytes_of_block));
    body(block);
  });
}

// Both halves of one row of a product; y is that row.
inline void finish(const Linear& linear, float* y, int64_t block, Floats low, Floats high, Into into) {
  if (!linear.bias.empty()) {
    low = low + load(linear.bias.data() + block * kColumns);
    high = high + load(linear.bias.data() + block * kColumns + 16);
  }
  const int64_t first = linear.columns(block, 0), second = linear.columns(block, 1);
  float *begin = y + linear.column(block, 0), *other = y + linear.column(block, 1);
  if (into == Into::kGate) return store(begin, silu(low) * high, first);
  if (into == Into::kAdd) {
    low = low + load(begin, first);
    high = high + load(other, second);
  }
  store(begin, low, first);
  store(other, high, second);
}

// Calls body(size, first row) over `rows` rows: size() is MAX, and for the last call the number of rows left.
template <int MAX, typename Body>
void tiles(int64_t rows, Body&& body) {
  int64_t row = 0;
  for (; row + MAX <= rows; row += MAX) body(std::integral_constant<int, MAX>(), row);
  if constexpr (MAX > 1) {
    if (row < rows) tiles<MAX - 1>(rows - row, [&](auto size, int64_t at) { body(size, row + at); });
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
