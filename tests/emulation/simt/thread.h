// What device code asks of the emulated CTA. A thread of a kernel is a fiber; it runs until it has to wait.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "core/check.h"
#include "core/tma_map.h"
#include "cuda_runtime_api.h"
#include "simt/fiber.h"

namespace quaver::simt {

struct Cta;

/// One WGMMA of a thread that has been issued; its results are written when the thread waits for it.
struct Product {
  float* d = nullptr;  ///< n / 2 registers of the thread
  int n = 0;
  bool a_in_registers = false;
  uint32_t a_codes[4] = {};
  uint64_t a = 0;  ///< descriptors
  uint64_t b = 0;
  bool accumulate = false;
  int group = 0;
};

/// A box of shared memory on its way to global memory.
struct Box {
  TmaMap map{};
  uint32_t source = 0;  ///< address
  int column = 0;
  int row = 0;
  bool committed = false;
};

/// What a thread waits for.
struct Waiting {
  const char* what = "its turn";
  uint32_t mbarrier = 0;  ///< address; 0: something else
  uint32_t number = 0;    ///< parity, or named barrier
};

struct Thread {
  uint3 thread{};  ///< threadIdx
  int number = 0;  ///< in the CTA
  Cta* cta = nullptr;
  Fiber fiber{};
  bool done = false;
  Waiting waiting{};
  std::vector<Product> products{};  ///< that still run
  std::vector<Box> boxes{};         ///< that have not been read
  int product_group = 0;            ///< number of the group that is being issued
  uint32_t cluster_phase = 0;       ///< of the cluster's barrier, when the thread arrived
  [[nodiscard]] int lane() const { return number % 32; }
  [[nodiscard]] int warp() const { return number / 32; }
  [[nodiscard]] const uint3& block() const;
  [[nodiscard]] const dim3& block_dim() const;
  [[nodiscard]] const dim3& grid_dim() const;
};

/// The thread whose code is running.
[[nodiscard]] Thread& running();

/// Ends the launch with an error that says which thread did what.
[[noreturn]] void fault_text(const std::string& text);
template <class... Parts>
[[noreturn]] void fault(const Parts&... parts) {
  fault_text(concat(parts...));
}
template <class... Parts>
void expect(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    fault_text(concat(parts...));
}

/// Lets all other threads run; a launch whose threads all poll for long ends as a deadlock.
void poll(const char* what);

/// __syncthreads(); returns the sum of the threads' values.
int sync_threads(int value);

/// Values of the lanes of a mask at a collective.
template <class T>
struct Exchanged {
  const std::byte (*slots)[16];
  uint32_t mask;
  [[nodiscard]] T from(int lane) const {
    expect((mask >> lane & 1U) != 0, "a value of lane ", lane, ": expected a lane of the mask ", hexadecimal(mask));
    return at(lane);
  }
  template <class Result, class Step>
  [[nodiscard]] Result fold(Result result, Step step) const {
    for (int lane = 0; lane < 32; ++lane) {
      if ((mask >> lane & 1U) != 0) result = step(result, lane, at(lane));
    }
    return result;
  }

 private:
  [[nodiscard]] T at(int lane) const {
    T value;
    std::memcpy(&value, slots[lane], sizeof(T));
    return value;
  }
};

/// Waits for all lanes of the mask and returns their values, which stay valid until the warp's next collective.
const std::byte (*meet_lanes(uint32_t mask, const char* what, const void* value, size_t bytes))[16];

template <class T>
[[nodiscard]] Exchanged<T> exchange_values(uint32_t mask, const char* what, const T& value) {
  static_assert(sizeof(T) <= 16 && std::is_trivially_copyable_v<T>);
  return {meet_lanes(mask, what, &value, sizeof(T)), mask};
}
template <class T>
Exchanged<T> exchange(uint32_t mask, const char* what, T value) {
  return exchange_values(mask, what, value);
}

// What ptx/*.cuh is made of. Addresses are 32 bits: of this CTA's shared memory, or of another one's by
// cluster_address().
[[nodiscard]] uint32_t shared_address(const void* pointer);
[[nodiscard]] uint32_t cluster_address(uint32_t address, int rank);
[[nodiscard]] int cluster_rank();
void wait_for_launches_in_front();
void cluster_arrive();
void cluster_wait();
void named_barrier(int id, int threads, bool wait);
void mbarrier_init(uint32_t address, int arrivals);
void mbarrier_arrive(uint32_t address, int bytes);
[[nodiscard]] bool mbarrier_test(uint32_t address, uint32_t parity, bool may_suspend);
void copy_async(uint32_t to, const void* from, int bytes, uint32_t barrier, uint32_t ranks);
void store_async(uint32_t to, const float4& value, uint32_t barrier);
[[nodiscard]] uint8_t* shared_pointer(uint32_t address, int bytes);
void store_box(const Box& box);
void commit_boxes();
void wait_for_boxes();
void wgmma_issue(Product product);
void wgmma_commit();
void wgmma_wait(int pending);

}  // namespace quaver::simt
