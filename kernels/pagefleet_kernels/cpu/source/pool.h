// A pool of threads that run numbered tasks. Tasks are claimed one at a time, so that a thread which the system does not
// schedule delays no other: the others do its share, and no thread waits for one that has claimed nothing.
#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>

#include "vector.h"

namespace pagefleet {

using Task = void (*)(void* job, int64_t index);

class Pool {
 public:
  // The caller of `run` is one of `threads`.
  explicit Pool(int threads) {
    for (int i = 1; i < threads; ++i) std::thread([this] { work(); }).detach();
    workers_ = threads - 1;
  }

  int threads() const { return workers_ + 1; }

  // Runs task(job, 0..count-1) and returns when all have ended. One caller at a time.
  void run(Task task, void* job, int64_t count) {
    if (workers_ == 0 || count == 1) {
      for (int64_t i = 0; i < count; ++i) task(job, i);
      return;
    }
    const uint32_t number = ++number_;
    // Closed first: a thread that is late with the last job must not claim a task of it once its count is replaced.
    next_.store(uint64_t(number) << 32 | 0xffffffffu, std::memory_order_seq_cst);
    task_.store(task, std::memory_order_release);
    job_.store(job, std::memory_order_release);
    count_.store(count, std::memory_order_release);
    done_.store(0, std::memory_order_release);
    next_.store(uint64_t(number) << 32, std::memory_order_seq_cst);
    signal_.store(number, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) futex(&signal_, FUTEX_WAKE_PRIVATE, workers_);
    claim(number);
    for (int spins = 0; done_.load(std::memory_order_acquire) != uint32_t(count); ++spins) {
      if (spins < kSpins) pause();
      else std::this_thread::yield();
    }
  }

 private:
  static constexpr int kSpins = 4000;  // about 50 us: longer than Python takes between two operations

  static long futex(std::atomic<uint32_t>* word, int operation, uint32_t value) {
    return syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value, nullptr, nullptr, 0);
  }

  void claim(uint32_t number) {
    for (;;) {
      uint64_t next = next_.load(std::memory_order_acquire);
      if (uint32_t(next >> 32) != number) return;
      const Task task = task_.load(std::memory_order_acquire);
      void* job = job_.load(std::memory_order_acquire);
      const int64_t index = int64_t(next & 0xffffffffu);
      if (index >= count_.load(std::memory_order_acquire)) return;
      // Success proves that the job read above is still the one with `number`.
      if (!next_.compare_exchange_strong(next, next + 1, std::memory_order_acq_rel)) continue;
      task(job, index);
      done_.fetch_add(1, std::memory_order_release);
    }
  }

  void work() {
    uint32_t last = 0;
    for (;;) {
      uint32_t current = signal_.load(std::memory_order_acquire);
      for (int spins = 0; current == last && spins < kSpins; ++spins) {
        pause();
        current = signal_.load(std::memory_order_acquire);
      }
      while (current == last) {
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        futex(&signal_, FUTEX_WAIT_PRIVATE, last);
        sleepers_.fetch_sub(1, std::memory_order_seq_cst);
        current = signal_.load(std::memory_order_acquire);
      }
      last = current;
      claim(current);
    }
  }

  int workers_ = 0;
  uint32_t number_ = 0;
  std::atomic<Task> task_{nullptr};
  std::atomic<void*> job_{nullptr};
  std::atomic<int64_t> count_{0};
  alignas(64) std::atomic<uint64_t> next_{0};
  alignas(64) std::atomic<uint32_t> done_{0};
  alignas(64) std::atomic<uint32_t> signal_{0};
  std::atomic<int> sleepers_{0};
};

template <typename Body>
void parallel(Pool& pool, int64_t count, Body body) {
  pool.run([](void* job, int64_t index) { (*static_cast<Body*>(job))(index); }, &body, count);
}

}  // namespace pagefleet
