// The arithmetic of sampling, shared by the CPU and CUDA samplers so that both draw the same tokens: probabilities are
// integers, and sums of integers do not depend on their order.
//
// The weight of a token is 2^x with x = logit * log2(e) / temperature, kept as an integer exponent and a factor in
// [0.7, 1.42]. Tokens are summed in chunks of kChunkTokens, in units of 2^(reference - kWeightBits), where the
// reference is the exponent of the chunk's best token; what lies below a unit is cut off. Sums of chunks are shifted to
// the reference of the row's best token. A chunk is so summed in the pass that finds its best token.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

#include "core/exp2.h"
#include "core/host_device.h"

namespace quaver {

inline constexpr int kChunkTokens = 1024;
/// 2^24 tokens, the most that a model may have, of at most 1.42 * 2^38 units each fit into 63 bits.
inline constexpr uint32_t kWeightBits = 38;
/// Weights exist for |x| < 2^22. A logit that large has a rounding error of half a unit of x, so there the best token
/// is drawn. At temperature 1 that is |logit| < 2.9 million.
inline constexpr float kExponentLimit = 4194304.0F;
inline constexpr int32_t kNoExponent = -4194304;
inline constexpr float kLog2e = std::numbers::log2e_v<float>;

/// False for a logit that has no weight: NaN, infinite or too large.
QUAVER_HD inline bool has_exponent(float logit, float scale) {
  return std::fabs(logit * scale) < kExponentLimit;
}

/// The integer next to x = logit * scale; kNoExponent for a NaN and for anything below -2^22.
QUAVER_HD inline int32_t weight_exponent(float logit, float scale) {
  const float shifted = std::fma(logit, scale, kRoundToInteger);
  if (!(shifted > kRoundToInteger - kExponentLimit)) return kNoExponent;
  return std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRoundToInteger);
}

/// The weight in units of 2^(reference - kWeightBits), rounded down; 0 for NaN and -inf. No token of the chunk has an
/// exponent above `reference`.
QUAVER_HD inline uint64_t weight_units(float logit, float scale, int32_t reference) {
  const float shifted = std::fma(logit, scale, kRoundToInteger);
  const float f = std::fma(logit, scale, kRoundToInteger - shifted);  // the product is exact
  const float factor = std::fma(exp2_series(f), f, 1.0F);
  // Nearly 2^32 for a NaN or an infinity and for what is too small.
  const uint32_t below =
      std::bit_cast<uint32_t>(kRoundToInteger) + static_cast<uint32_t>(reference) - std::bit_cast<uint32_t>(shifted);
  const uint32_t scaled = std::bit_cast<uint32_t>(factor) + ((static_cast<uint32_t>(kWeightBits) - below) << 23U);
  return static_cast<uint64_t>(below <= kWeightBits + 1 ? std::bit_cast<float>(scaled) : 0.0F);
}

/// The weights of a row, `sum` units; no sum where `best` has no exponent.
struct WeightSum {
  uint64_t sum = 0;
  float best = std::numeric_limits<float>::quiet_NaN();
};

/// The sum of a chunk in units of the row.
QUAVER_HD inline uint64_t chunk_units(uint64_t sum, int32_t chunk_exponent, int32_t row_exponent) {
  const int32_t shift = row_exponent - chunk_exponent;
  return shift > 63 ? 0 : sum >> static_cast<uint32_t>(shift);
}

/// Finaliser of splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014): a bijection
/// in which every input bit changes half of the output bits.
QUAVER_HD inline uint64_t mix_bits(uint64_t x) {
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

/// Uniform in [0, 1), a pure function of its arguments.
QUAVER_HD inline double uniform_draw(uint64_t seed, int64_t position) {
  constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15U;
  const uint64_t bits = mix_bits(mix_bits(seed + kGoldenRatio) + static_cast<uint64_t>(position) * kGoldenRatio);
  return static_cast<double>(bits >> 11U) * 0x1p-53;
}

/// Where a draw falls among `total` > 0 units laid end to end in the order of ids: 0 … total - 1. The token there has a
/// positive weight.
QUAVER_HD inline uint64_t drawn_unit(double uniform, uint64_t total) {
  const auto unit = static_cast<uint64_t>(uniform * static_cast<double>(total));
  return unit < total ? unit : total - 1;
}

/// The fewest units that are top_p of `total`; at least 1.
QUAVER_HD inline uint64_t units_of_top_p(double top_p, uint64_t total) {
  const double units = std::ceil(top_p * static_cast<double>(total));
  return units > 1.0 ? static_cast<uint64_t>(units) : 1;
}

/// How a request draws, worked out once: SamplingParams in the terms of this file.
struct DrawRule {
  bool greedy = true;
  bool cuts = false;   ///< top-k, top-p or min-p leave out tokens
  float scale = 0.0F;  ///< log2(e) / temperature
  int32_t top_k = 0;   ///< 0: all
  double top_p = 1.0;
  double reach = 0.0;      ///< with cuts, logits further below the best one than this do not exist: weights below 2^-38
  double min_p_reach = 0;  ///< logits further below the best one than this are left out at last; at most `reach`
  uint64_t seed = 0;
};

/// The least logit that is within `reach` of the best one.
QUAVER_HD inline float least_logit(float best, double reach) {
  constexpr float kLeast = std::numeric_limits<float>::lowest();
  const double least = static_cast<double>(best) - reach;
  if (!(least > static_cast<double>(kLeast))) return kLeast;
  const auto rounded = static_cast<float>(least);
  return static_cast<double>(rounded) < least ? std::nextafter(rounded, std::numeric_limits<float>::infinity())
                                              : rounded;
}

/// Tokens that were generated more often count as often as this.
inline constexpr int32_t kMostCounted = 8191;

/// What a slot's past does to the logit of a token that it has seen.
struct Penalties {
  double repetition = 1.0;
  double presence = 0.0;
  double frequency = 0.0;
};

/// `count`: how often the token was generated; 0: it is in the prompt only.
QUAVER_HD inline float penalised(float logit, const Penalties& penalties, int32_t count) {
  const auto exact = static_cast<double>(logit);
  const double repeated = exact > 0 ? exact / penalties.repetition : exact * penalties.repetition;
  const double generated = count > 0 ? penalties.presence + penalties.frequency * count : 0.0;
  return static_cast<float>(repeated - generated);
}

/// Larger for what comes first: the larger logit, of equal ones the lower id. Neither NaN nor negative ids.
QUAVER_HD inline uint32_t order_of(float logit) {
  const auto bits = std::bit_cast<uint32_t>(logit + 0.0F);  // -0 is 0
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
QUAVER_HD inline uint64_t order_of(float logit, int32_t id) {
  return static_cast<uint64_t>(order_of(logit)) << 32U | (0xFFFFFFFFU - static_cast<uint32_t>(id));
}
QUAVER_HD inline float logit_of(uint32_t order) {
  return std::bit_cast<float>((order & 0x80000000U) != 0 ? order & 0x7FFFFFFFU : ~order);
}
QUAVER_HD inline int32_t id_of(uint64_t order) {
  return static_cast<int32_t>(0xFFFFFFFFU - static_cast<uint32_t>(order));
}

}  // namespace quaver
