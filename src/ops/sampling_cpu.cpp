#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "core/simd.h"
#include "ops/sampling.h"

namespace quaver {
namespace {

using simd::F32x8;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr size_t kLanes = 8;
constexpr size_t kChunk = 1024;  // logits whose weights are summed before the draw looks where it falls

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

bool better(const TokenLogit& a, const TokenLogit& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

/// 2^-x of a token is its weight exp((logit - best) / temperature).
class Weights {
 public:
  Weights(double temperature, float best)
      : best_(best), scale_(static_cast<float>(std::numbers::log2e / temperature)) {}

  [[nodiscard]] F32x8 x(F32x8 logits) const { return (best_ - logits) * scale_; }
  /// 0 for NaN and -inf.
  [[nodiscard]] F32x8 of(F32x8 logits) const {
    return simd::select(logits > -kInfinity, simd::exp2(-x(logits)), simd::broadcast(0.0F));
  }
  [[nodiscard]] double of(float logit) const { return of(simd::broadcast(logit))[0]; }

 private:
  float best_;
  float scale_;
};

constexpr TokenLogit kKeepsAll{.id = std::numeric_limits<int32_t>::max(), .logit = -kInfinity};

/// The worst of the best tokens that together have top_p of all weights. Sorting a vocabulary takes longer than a
/// decode step, so tokens are put into buckets of like weight first, and only the bucket where the sum gets there is
/// sorted.
TokenLogit nucleus_cut(double top_p, std::span<const float> logits, const Weights& weights,
                       std::vector<TokenLogit>& scratch) {
  constexpr int kBuckets = 1024;  // the last one has all weights below 2^-63.9
  constexpr float kPerOctave = 16.0F;
  const auto buckets_of = [&](F32x8 values) {
    const F32x8 bucket = weights.x(values) * kPerOctave;
    const F32x8 last = simd::broadcast(kBuckets - 1);
    return __builtin_convertvector(simd::select(bucket < last, bucket, last), simd::I32x8);  // NaN: last
  };
  std::array<double, kBuckets> sums{};
  for (size_t i = 0; i < logits.size(); i += kLanes) {
    const F32x8 values = load_or(logits, i, -kInfinity);
    const F32x8 weight = weights.of(values);
    const simd::I32x8 bucket = buckets_of(values);
    for (size_t lane = 0; lane < kLanes; ++lane) sums[static_cast<size_t>(bucket[lane])] += weight[lane];
  }
  const double mass = top_p * std::accumulate(sums.begin(), sums.end(), 0.0);
  int cut = 0;
  double sum = 0.0;
  while (cut < kBuckets - 1 && sum + sums[static_cast<size_t>(cut)] < mass) sum += sums[static_cast<size_t>(cut++)];

  scratch.clear();
  for (size_t i = 0; i < logits.size(); i += kLanes) {
    const simd::I32x8 found = buckets_of(load_or(logits, i, -kInfinity)) == cut;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      if (found[lane] != 0 && i + lane < logits.size() && logits[i + lane] > -kInfinity) {
        scratch.push_back({.id = static_cast<int32_t>(i + lane), .logit = logits[i + lane]});
      }
    }
  }
  std::sort(scratch.begin(), scratch.end(), better);
  for (const TokenLogit& token : scratch) {
    sum += weights.of(token.logit);
    if (sum >= mass) return token;
  }
  return kKeepsAll;  // the sum of all fell short of `mass` by rounding
}

/// The worst token that top-k and top-p leave.
TokenLogit find_cut(const SamplingParams& params, std::span<const float> logits, const Weights& weights,
                    std::vector<TokenLogit>& scratch) {
  if (params.top_k == 0 || std::cmp_greater_equal(params.top_k, logits.size())) {
    return params.top_p < 1.0 ? nucleus_cut(params.top_p, logits, weights, scratch) : kKeepsAll;
  }
  best_logits(logits, params.top_k, scratch);
  double total = 0.0;
  for (const TokenLogit& token : scratch) total += weights.of(token.logit);
  double sum = 0.0;
  for (const TokenLogit& token : scratch) {
    sum += weights.of(token.logit);
    if (sum >= params.top_p * total) return token;
  }
  return scratch.back();
}

/// The weights of what top-k, top-p and min-p leave, 0 for all others, in the order of ids.
class KeptWeights {
 public:
  KeptWeights(std::span<const float> logits, const Weights& weights, TokenLogit cut, double least)
      : logits_(logits), weights_(weights), cut_(cut), least_(static_cast<float>(least)) {}

  [[nodiscard]] F32x8 from(size_t begin) const {
    const F32x8 logits = load_or(logits_, begin, -kInfinity);
    const F32x8 weights = weights_.of(logits);
    const simd::I32x8 ids = simd::I32x8{0, 1, 2, 3, 4, 5, 6, 7} + static_cast<int32_t>(begin);
    const simd::I32x8 above = (logits > cut_.logit) | ((logits == cut_.logit) & (ids <= cut_.id));
    return simd::select(above & (weights >= least_), weights, simd::broadcast(0.0F));
  }
  [[nodiscard]] double chunk_sum(size_t chunk) const {
    LaneSum sum;
    const size_t end = std::min(logits_.size(), (chunk + 1) * kChunk);
    for (size_t i = chunk * kChunk; i < end; i += kLanes) sum.add(from(i));
    return sum.total();
  }

 private:
  std::span<const float> logits_;
  const Weights& weights_;
  TokenLogit cut_;
  float least_;
};

/// Where `target` falls among weights laid end to end from `begin` on: the last positive weight that starts at or
/// before it, so that rounding never leads past the end.
struct Place {
  size_t index = 0;
  double begin = 0.0;
};
template <class Values>
Place find_place(const Values& weights, double begin, double target) {
  Place place{.index = 0, .begin = begin};
  for (size_t i = 0; i < weights.size() && begin <= target; ++i) {
    if (weights[i] > 0) place = {.index = i, .begin = begin};
    begin += weights[i];
  }
  return place;
}

/// First the chunk that the draw falls into, then the token.
int32_t draw_from(const KeptWeights& weights, size_t vocab, double uniform) {
  std::vector<double> sums((vocab + kChunk - 1) / kChunk);
  for (size_t chunk = 0; chunk < sums.size(); ++chunk) sums[chunk] = weights.chunk_sum(chunk);
  const double target = uniform * std::accumulate(sums.begin(), sums.end(), 0.0);
  const Place chunk = find_place(sums, 0.0, target);
  std::array<float, kChunk> in_chunk{};
  const size_t first = chunk.index * kChunk;
  for (size_t i = 0; i < kChunk && first + i < vocab; i += kLanes) {
    simd::store(in_chunk.data() + i, weights.from(first + i));
  }
  return static_cast<int32_t>(first + find_place(in_chunk, chunk.begin, target).index);
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
  const Weights weights(params.temperature, best);
  const TokenLogit cut = find_cut(params, logits, weights, scratch);
  const double uniform = uniform_draw(params.seed, position);
  return draw_from(KeptWeights(logits, weights, cut, params.min_p), logits.size(), uniform);
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
