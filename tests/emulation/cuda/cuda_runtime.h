// What nvcc puts in front of a .cu file: keywords, built-in variables and intrinsics, on the emulated CTA. First in
// every file of the emulation (precompiled).
#pragma once

#include <algorithm>
#include <bit>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "cuda_runtime_api.h"
#include "simt/thread.h"

// A CTA runs on an OS thread of its own: what is local to that thread is shared by the threads of the CTA.
#define __shared__ thread_local
#define __constant__ const
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__ __restrict

// Not macros: launch configurations have members of these names.
template <auto kRead>
struct QuaverBuiltIn {
  operator unsigned() const { return kRead(quaver::simt::running()); }  // NOLINT: reads like a number
};
#define QUAVER_BUILT_IN(name, value)                                          \
  inline constexpr struct {                                                   \
    QuaverBuiltIn<[](const quaver::simt::Thread& t) { return t.value.x; }> x; \
    QuaverBuiltIn<[](const quaver::simt::Thread& t) { return t.value.y; }> y; \
    QuaverBuiltIn<[](const quaver::simt::Thread& t) { return t.value.z; }> z; \
  } name
QUAVER_BUILT_IN(threadIdx, thread);
QUAVER_BUILT_IN(blockIdx, block());
QUAVER_BUILT_IN(blockDim, block_dim());
QUAVER_BUILT_IN(gridDim, grid_dim());
#undef QUAVER_BUILT_IN
inline constexpr int warpSize = 32;

template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  const std::common_type_t<A, B> x = a, y = b;
  return y < x ? y : x;
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  const std::common_type_t<A, B> x = a, y = b;
  return x < y ? y : x;
}

// Control.
[[noreturn]] inline void __trap() {
  quaver::simt::fault("__trap()");
}
inline void __nanosleep(unsigned) {
  quaver::simt::poll("__nanosleep");
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __syncthreads() {
  quaver::simt::sync_threads(0);
}
inline int __syncthreads_count(int predicate) {
  return quaver::simt::sync_threads(predicate != 0 ? 1 : 0);
}
inline int __syncthreads_or(int predicate) {
  return __syncthreads_count(predicate) != 0 ? 1 : 0;
}
inline int __syncthreads_and(int predicate) {
  return __syncthreads_count(predicate == 0 ? 1 : 0) == 0 ? 1 : 0;
}

// Warps. A collective returns when all lanes of the mask have come to it.
inline void __syncwarp(unsigned mask = 0xFFFFFFFFU) {
  quaver::simt::exchange(mask, "__syncwarp", 0);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  const auto values = quaver::simt::exchange(mask, "__shfl_sync", value);
  const int own = quaver::simt::running().lane();
  return values.from(own / width * width + (lane & (width - 1)));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  const auto values = quaver::simt::exchange(mask, "__shfl_xor_sync", value);
  const int own = quaver::simt::running().lane();
  const int other = own ^ lanes;
  return other / width <= own / width ? values.from(other) : value;
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32) {
  const auto values = quaver::simt::exchange(mask, "__shfl_up_sync", value);
  const int own = quaver::simt::running().lane();
  return own % width >= static_cast<int>(distance) ? values.from(own - static_cast<int>(distance)) : value;
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32) {
  const auto values = quaver::simt::exchange(mask, "__shfl_down_sync", value);
  const int own = quaver::simt::running().lane();
  return own % width + static_cast<int>(distance) < width ? values.from(own + static_cast<int>(distance)) : value;
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const auto values = quaver::simt::exchange(mask, "__ballot_sync", predicate != 0);
  return values.template fold<unsigned>(
      0U, [](unsigned bits, int lane, bool set) { return bits | (set ? 1U << lane : 0U); });
}
inline int __any_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0 ? 1 : 0;
}
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) == mask ? 1 : 0;
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value) {
  const auto values = quaver::simt::exchange(mask, "__match_any_sync", value);
  return values.template fold<unsigned>(
      0U, [&](unsigned bits, int lane, T other) { return bits | (other == value ? 1U << lane : 0U); });
}
template <class T>
T __reduce_add_sync(unsigned mask, T value) {
  return quaver::simt::exchange(mask, "__reduce_add_sync", value).template fold<T>(T{0}, [](T sum, int, T other) {
    return static_cast<T>(sum + other);
  });
}
template <class T>
T __reduce_max_sync(unsigned mask, T value) {
  return quaver::simt::exchange(mask, "__reduce_max_sync", value).template fold<T>(value, [](T most, int, T other) {
    return std::max(most, other);
  });
}
template <class T>
T __reduce_min_sync(unsigned mask, T value) {
  return quaver::simt::exchange(mask, "__reduce_min_sync", value).template fold<T>(value, [](T least, int, T other) {
    return std::min(least, other);
  });
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value) {
  return quaver::simt::exchange(mask, "__reduce_or_sync", value)
      .template fold<unsigned>(0U, [](unsigned bits, int, unsigned other) { return bits | other; });
}

// Memory. Threads change places at collectives and waits only, so atomics are plain operations.
template <class T>
T __ldg(const T* from) {
  return *from;
}
template <class T>
T __ldcg(const T* from) {
  return *from;
}
template <class T>
T __ldcs(const T* from) {
  return *from;
}
template <class T>
void __stcg(T* to, T value) {
  *to = value;
}
template <class T>
void __stcs(T* to, T value) {
  *to = value;
}
template <class T, class Change>
T quaver_atomic(T* at, Change change) {
  const T before = *at;
  *at = change(before);
  return before;
}
template <class T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  return quaver_atomic(at, [=](T x) { return static_cast<T>(x + value); });
}
template <class T>
T atomicSub(T* at, std::type_identity_t<T> value) {
  return quaver_atomic(at, [=](T x) { return static_cast<T>(x - value); });
}
template <class T>
T atomicMax(T* at, std::type_identity_t<T> value) {
  return quaver_atomic(at, [=](T x) { return std::max(x, value); });
}
template <class T>
T atomicMin(T* at, std::type_identity_t<T> value) {
  return quaver_atomic(at, [=](T x) { return std::min(x, value); });
}
template <class T>
T atomicOr(T* at, std::type_identity_t<T> value) {
  return quaver_atomic(at, [=](T x) { return x | value; });
}
template <class T>
T atomicAnd(T* at, std::type_identity_t<T> value) {
  return quaver_atomic(at, [=](T x) { return x & value; });
}
template <class T>
T atomicExch(T* at, std::type_identity_t<T> value) {
  return quaver_atomic(at, [=](T) { return value; });
}
template <class T>
T atomicCAS(T* at, std::type_identity_t<T> compare, std::type_identity_t<T> value) {
  return quaver_atomic(at, [=](T x) { return x == compare ? value : x; });
}
inline unsigned atomicInc(unsigned* at, unsigned last) {
  return quaver_atomic(at, [=](unsigned x) { return x >= last ? 0U : x + 1U; });
}

#include "intrinsics.h"
