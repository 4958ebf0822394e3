#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "core/check.h"
#include "core/simd.h"
#include "ops/sampling.h"

namespace quaver {
namespace {

using simd::F32x8;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr size_t kLanes = 8;
constexpr size_t kChunk = 1024;         // logits whose weights are summed before the draw looks where it falls
constexpr int64_t kFirstNucleus = 256;  // top-p rarely needs more tokens than this

/// Finaliser of splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014): a bijection
/// in which every input bit changes half of the output bits.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

bool in_range(double value, double low, double high) {
  return value >= low && value <= high;  // false for NaN
}

/// Eight logits from `begin` on; `filler` past the end.
F32x8 load_or(std::span<const float> logits, size_t begin, float filler) {
  if (begin + kLanes <= logits.size()) return simd::load<F32x8>(logits.data() + begin);
  std::array<float, kLanes> padded;
  padded.fill(filler);
  std::copy(logits.begin() + static_cast<int64_t>(begin), logits.end(), padded.begin());
  return simd::load<F32x8>(padded.data());
}

/// -inf when no logit is a number.
float largest(std::span<const float> logits) {
  F32x8 lanes = simd::broadcast(-kInfinity);
  for (size_t i = 0; i < logits.size(); i += kLanes) lanes = simd::max(load_or(logits, i, -kInfinity), lanes);
  return simd::max_lanes(lanes);
}

/// Sums of floats in double: eight lanes, folded in one order.
class LaneSum {
 public:
  void add(F32x8 values) {
    low_ += __builtin_convertvector(__builtin_shufflevector(values, values, 0, 1, 2, 3), F64x4);
    high_ += __builtin_convertvector(__builtin_shufflevector(values, values, 4, 5, 6, 7), F64x4);
  }
  [[nodiscard]] double total() const {
    const F64x4 sum = low_ + high_;
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
  }

 private:
  using F64x4 [[gnu::vector_size(32)]] = double;
  F64x4 low_{};
  F64x4 high_{};
};

/// exp((logit - best) / temperature) of eight logits at once; 0 for NaN, -inf and less than `least`.
class Weights {
 public:
  Weights(double temperature, float best, double least)
      : best_(best), scale_(static_cast<float>(std::numbers::log2e / temperature)), least_(static_cast<float>(least)) {}

  [[nodiscard]] F32x8 of(F32x8 logits) const {
    const F32x8 weights = simd::exp2((logits - best_) * scale_);
    return simd::select((logits > -kInfinity) & (weights >= least_), weights, simd::broadcast(0.0F));
  }
  [[nodiscard]] double of(float logit) const { return of(simd::broadcast(logit))[0]; }

  /// Sums over kChunk tokens each.
  [[nodiscard]] std::vector<double> chunk_sums(std::span<const float> logits) const {
    std::vector<double> sums;
    for (size_t begin = 0; begin < logits.size(); begin += kChunk) {
      const std::span<const float> chunk = logits.subspan(begin, std::min(kChunk, logits.size() - begin));
      LaneSum sum;
      for (size_t i = 0; i < chunk.size(); i += kLanes) sum.add(of(load_or(chunk, i, -kInfinity)));
      sums.push_back(sum.total());
    }
    return sums;
  }

 private:
  float best_;
  float scale_;
  float least_;
};

double sum_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

/// Where `target` falls among weights laid end to end from `begin` on: the last positive weight that starts at or
/// before it, so that rounding never leads past the end.
struct Place {
  size_t index = 0;
  double begin = 0.0;
};
template <class WeightOf>
Place find_place(size_t first, size_t last, double begin, double target, const WeightOf& weight_of) {
  Place place{.index = first, .begin = begin};
  for (size_t i = first; i < last && begin <= target; ++i) {
    const double weight = weight_of(i);
    if (weight > 0.0) place = {.index = i, .begin = begin};
    begin += weight;
  }
  return place;
}

/// Tokens in the order of their ids: first the chunk that the draw falls into, then the token.
int32_t draw_from_all(std::span<const float> logits, const Weights& weights, double uniform) {
  const std::vector<double> sums = weights.chunk_sums(logits);
  const double target = uniform * sum_of(sums);
  const Place chunk = find_place(0, sums.size(), 0.0, target, [&](size_t i) { return sums[i]; });
  const size_t first = chunk.index * kChunk;
  const Place token = find_place(first, std::min(logits.size(), first + kChunk), chunk.begin, target,
                                 [&](size_t id) { return weights.of(logits[id]); });
  return static_cast<int32_t>(token.index);
}

/// The tokens that top-k and top-p leave, best first.
void keep_best(const SamplingParams& params, std::span<const float> logits, const Weights& weights,
               std::vector<TokenLogit>& kept) {
  const auto vocab = static_cast<int64_t>(logits.size());
  const bool all = params.top_k == 0 || params.top_k >= vocab;
  int64_t count = all ? std::min(vocab, kFirstNucleus) : params.top_k;
  double total = all ? sum_of(weights.chunk_sums(logits)) : 0.0;
  for (;;) {
    best_logits(logits, count, kept);
    if (!all) {
      for (const TokenLogit& token : kept) total += weights.of(token.logit);
    }
    size_t num_kept = 0;
    for (double sum = 0.0; num_kept < kept.size() && (num_kept == 0 || sum < params.top_p * total); ++num_kept) {
      sum += weights.of(kept[num_kept].logit);
    }
    if (num_kept < kept.size() || !all || count == vocab) return kept.resize(num_kept);
    count = std::min(vocab, 8 * count);
  }
}

}  // namespace

void check_sampling_params(const SamplingParams& params) {
  check(params.temperature >= 0.0 && std::isfinite(params.temperature), "temperature ", params.temperature,
        ": expected a finite number >= 0");
  check(params.top_k >= 0, "top_k ", params.top_k, ": expected >= 1, or 0 for all tokens");
  check(params.top_p > 0.0 && params.top_p <= 1.0, "top_p ", params.top_p, ": expected in (0, 1]");
  check(in_range(params.min_p, 0.0, 1.0), "min_p ", params.min_p, ": expected in [0, 1]");
  check(params.repetition_penalty > 0.0 && std::isfinite(params.repetition_penalty), "repetition_penalty ",
        params.repetition_penalty, ": expected a finite number > 0");
  check(in_range(params.presence_penalty, -2.0, 2.0), "presence_penalty ", params.presence_penalty,
        ": expected in [-2, 2]");
  check(in_range(params.frequency_penalty, -2.0, 2.0), "frequency_penalty ", params.frequency_penalty,
        ": expected in [-2, 2]");
}

int32_t argmax(std::span<const float> logits) {
  const auto found = std::find(logits.begin(), logits.end(), largest(logits));
  check_as(ErrorKind::kInternal, found != logits.end(), "logits: expected at least one number, all ", logits.size(),
           " are NaN");
  return static_cast<int32_t>(found - logits.begin());
}

void best_logits(std::span<const float> logits, int64_t count, std::vector<TokenLogit>& best) {
  const auto limit = static_cast<size_t>(count);
  const auto better = [](const TokenLogit& a, const TokenLogit& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  best.clear();  // a heap with the worst on top
  for (size_t id = 0; id < logits.size() && limit > 0; ++id) {
    if (best.size() == limit) {
      if (!(logits[id] > best.front().logit)) continue;
      std::pop_heap(best.begin(), best.end(), better);
      best.pop_back();
    } else if (std::isnan(logits[id])) {
      continue;
    }
    best.push_back({.id = static_cast<int32_t>(id), .logit = logits[id]});
    std::push_heap(best.begin(), best.end(), better);
  }
  std::sort_heap(best.begin(), best.end(), better);
}

double uniform_draw(uint64_t seed, int64_t position) {
  constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15U;
  const uint64_t bits = mix(mix(seed + kGoldenRatio) + static_cast<uint64_t>(position) * kGoldenRatio);
  return static_cast<double>(bits >> 11U) * 0x1p-53;
}

int32_t sample_token(const SamplingParams& params, std::span<const float> logits, int64_t position,
                     std::vector<TokenLogit>& scratch) {
  const float best = largest(logits);
  check_as(ErrorKind::kInternal, best > -kInfinity, "logits: expected at least one of ", logits.size(),
           " above -inf and not NaN");
  if (params.temperature < kGreedyTemperature || best == kInfinity) return argmax(logits);
  const double uniform = uniform_draw(params.seed, position);
  const auto vocab = static_cast<int64_t>(logits.size());
  if (params.top_p == 1.0 && (params.top_k == 0 || params.top_k >= vocab)) {
    return draw_from_all(logits, Weights(params.temperature, best, params.min_p), uniform);
  }
  const Weights weights(params.temperature, best, 0.0);
  keep_best(params, logits, weights, scratch);
  const auto weight_of = [&](size_t i) { return weights.of(scratch[i].logit); };
  while (weight_of(scratch.size() - 1) < params.min_p) scratch.pop_back();
  double total = 0.0;
  for (size_t i = 0; i < scratch.size(); ++i) total += weight_of(i);
  return scratch[find_place(0, scratch.size(), 0.0, uniform * total, weight_of).index].id;
}

double log_sum_exp(std::span<const float> logits) {
  const float best = largest(logits);
  LaneSum sum;
  for (size_t i = 0; i < logits.size(); i += kLanes) {
    sum.add(simd::exp2((load_or(logits, i, -kInfinity) - best) * std::numbers::log2e_v<float>));
  }
  return best + std::log(sum.total());
}

double log_probability(std::span<const float> logits, int32_t token) {
  check(token >= 0 && static_cast<size_t>(token) < logits.size(), "token id ", token, ": expected 0 to ",
        logits.size() - 1);
  return logits[static_cast<size_t>(token)] - log_sum_exp(logits);
}

}  // namespace quaver
