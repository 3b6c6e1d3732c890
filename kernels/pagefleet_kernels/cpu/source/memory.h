// Memory for vector code: arrays that begin with a cache line, and lines fetched before they are needed.
#pragma once
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "vector.h"

namespace pagefleet {

constexpr int64_t kLine = 64;  // bytes of a cache line, and of sixteen lanes

// A load of a register that lies across two lines costs two.
template <typename T>
struct InLines {
  using value_type = T;
  InLines() = default;
  template <typename U>
  InLines(const InLines<U>&) {}
  T* allocate(size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t(kLine))); }
  void deallocate(T* begin, size_t) { ::operator delete(begin, std::align_val_t(kLine)); }
  template <typename U>
  bool operator==(const InLines<U>&) const { return true; }
  template <typename U>
  bool operator!=(const InLines<U>&) const { return false; }
};

template <typename T>
using Array = std::vector<T, InLines<T>>;

// Bytes that nobody has written: the system gives them memory when somebody does, to several threads at a time.
struct Freed {
  void operator()(uint8_t* begin) const { ::operator delete(begin, std::align_val_t(kLine)); }
};
using Bytes = std::unique_ptr<uint8_t[], Freed>;
inline Bytes unwritten(int64_t count) {
  return Bytes(static_cast<uint8_t*>(::operator new(size_t(count), std::align_val_t(kLine))));
}

// At least `count` elements; memory that is used again and again never shrinks.
template <typename T>
T* grown(Array<T>& array, int64_t count) {
  if (array.size() < size_t(count)) array.resize(count);
  return array.data();
}

// Memory that will be read soon, fetched a few lines at a time beside other work: the hardware's prefetcher stops at the
// end of each page of 4 KiB, and many lines at once would hold the work up.
struct Ahead {
  const char* begin = nullptr;
  int64_t bytes = 0;

  // The share of `size` pieces of work from `at` on, of `count` equal ones.
  Ahead share(int64_t at, int64_t size, int64_t count) const {
    const int64_t from = bytes * at / count;
    return {begin + from, bytes * (at + size) / count - from};
  }

  // The next `part` bytes.
  void fetch(int64_t part) {
    for (int64_t i = 0; i < part; i += kLine) prefetch_later(begin + i);
    begin += part;
  }
};

}  // namespace pagefleet
