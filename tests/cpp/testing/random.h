// A small random generator whose numbers are the same on every platform (std::normal_distribution's are not).
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace quaver::testing {

/// splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t bits() {
    uint64_t x = (state_ += 0x9E3779B97F4A7C15U);
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
    return x ^ (x >> 31);
  }
  /// In [0, 1).
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  /// In [0, bound).
  int64_t below(int64_t bound) { return static_cast<int64_t>(uniform() * static_cast<double>(bound)); }
  /// N(0, 1), Box-Muller.
  float normal() {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    return static_cast<float>(radius * std::cos(2.0 * std::numbers::pi * uniform()));
  }

 private:
  uint64_t state_;
};

}  // namespace quaver::testing
