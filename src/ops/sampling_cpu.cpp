#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <utility>

#include "core/check.h"
#include "core/simd.h"
#include "ops/sampling.h"

namespace quaver {
namespace {

using simd::F32x8;
using simd::I32x8;
using simd::U32x8;
using U64x4 [[gnu::vector_size(32)]] = uint64_t;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr size_t kLanes = 8;
constexpr size_t kChunk = kChunkTokens;

bool in_range(double value, double low, double high) {
  return value >= low && value <= high;  // false for NaN
}

/// Eight logits from `begin` on; -inf past the end.
F32x8 load(std::span<const float> logits, size_t begin) {
  if (begin + kLanes <= logits.size()) return simd::load<F32x8>(logits.data() + begin);
  std::array<float, kLanes> padded;
  padded.fill(-kInfinity);
  std::copy(logits.begin() + static_cast<int64_t>(begin), logits.end(), padded.begin());
  return simd::load<F32x8>(padded.data());
}

/// -inf when no logit is a number.
float largest(std::span<const float> logits) {
  F32x8 lanes = simd::broadcast(-kInfinity);
  for (size_t i = 0; i < logits.size(); i += kLanes) lanes = simd::max(load(logits, i), lanes);
  return simd::max_lanes(lanes);
}

/// The lowest id with this logit; the vocabulary's size if there is none.
int32_t first_of(std::span<const float> logits, float logit) {
  return static_cast<int32_t>(std::find(logits.begin(), logits.end(), logit) - logits.begin());
}

bool better(const TokenLogit& a, const TokenLogit& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

struct Units {
  U64x4 low, high;
};

/// weight_units() of each lane, on integers: a factor's 24 bits, shifted.
Units units_of(F32x8 logits, float scale, int32_t reference) {
  const F32x8 scales = simd::broadcast(scale);
  const F32x8 shifted = simd::fma(logits, scales, simd::broadcast(kRoundToInteger));
  const F32x8 f = simd::fma(logits, scales, kRoundToInteger - shifted);
  const F32x8 series = exp2_series(simd::broadcast(kExp2SeriesHighest),
                                   [f](F32x8 p, float c) { return simd::fma(p, f, simd::broadcast(c)); });
  const auto factor = std::bit_cast<U32x8>(simd::fma(series, f, simd::broadcast(1.0F)));
  const U32x8 below =
      std::bit_cast<uint32_t>(kRoundToInteger) + static_cast<uint32_t>(reference) - std::bit_cast<U32x8>(shifted);
  const auto counts = std::bit_cast<U32x8>(below <= kWeightBits + 1);
  const U32x8 shift = (counts & (127 + 23 - (factor >> 23U) + below)) | (~counts & 63U);
  const U32x8 bits = (factor & 0x7FFFFFU) | 0x800000U;
  const auto half = [](auto part, auto count) {
    return (__builtin_convertvector(part, U64x4) << kWeightBits) >> __builtin_convertvector(count, U64x4);
  };
  return {
      .low = half(__builtin_shufflevector(bits, bits, 0, 1, 2, 3), __builtin_shufflevector(shift, shift, 0, 1, 2, 3)),
      .high = half(__builtin_shufflevector(bits, bits, 4, 5, 6, 7), __builtin_shufflevector(shift, shift, 4, 5, 6, 7))};
}

/// Units of eight tokens, one by one.
void store_units(const Units& units, uint64_t* to) {
  std::memcpy(to, &units.low, sizeof units.low);
  std::memcpy(to + kLanes / 2, &units.high, sizeof units.high);
}

/// The chunks of a row: best logits and sums of weights.
struct Chunks {
  explicit Chunks(size_t vocab) : best((vocab + kChunk - 1) / kChunk), sums(best.size()) {}
  std::vector<float> best;
  std::vector<uint64_t> sums;

  [[nodiscard]] float row_best() const { return *std::max_element(best.begin(), best.end()); }
  /// Units of chunk i where the row's best token has exponent `row_exponent`.
  [[nodiscard]] uint64_t units(size_t i, float scale, int32_t row_exponent) const {
    return chunk_units(sums[i], weight_exponent(best[i], scale), row_exponent);
  }
  [[nodiscard]] uint64_t total(float scale) const {
    const int32_t row_exponent = weight_exponent(row_best(), scale);
    uint64_t sum = 0;
    for (size_t i = 0; i < sums.size(); ++i) sum += units(i, scale, row_exponent);
    return sum;
  }
};

/// The sum of what `logits_at(i)`, eight logits from i on, leaves of a chunk; -inf is left out.
template <class LogitsAt>
uint64_t sum_chunk(size_t begin, size_t end, float scale, float best, const LogitsAt& logits_at) {
  const int32_t reference = weight_exponent(best, scale);
  U64x4 sum{};
  for (size_t i = begin; i < end; i += kLanes) {
    const Units units = units_of(logits_at(i), scale, reference);
    sum += units.low + units.high;
  }
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

Chunks sum_chunks(std::span<const float> logits, float scale) {
  Chunks chunks(logits.size());
  for (size_t i = 0; i < chunks.best.size(); ++i) {
    const size_t begin = i * kChunk;
    const size_t end = std::min(logits.size(), begin + kChunk);
    chunks.best[i] = largest(logits.subspan(begin, end - begin));
    chunks.sums[i] = sum_chunk(begin, end, scale, chunks.best[i], [&](size_t at) { return load(logits, at); });
  }
  return chunks;
}

/// One row of logits and how to draw from it.
class RowDraw {
 public:
  RowDraw(const DrawRule& rule, std::span<const float> logits, std::vector<TokenLogit>& scratch)
      : rule_(rule), logits_(logits), scratch_(scratch), chunks_(sum_chunks(logits, rule.scale)) {
    best_ = chunks_.row_best();
    exponent_ = weight_exponent(best_, rule.scale);
  }
  [[nodiscard]] bool has_weights() const { return has_exponent(best_, rule_.scale); }
  [[nodiscard]] float best() const { return best_; }
  [[nodiscard]] int32_t draw(double uniform);

 private:
  [[nodiscard]] uint64_t units(float logit) const { return weight_units(logit, rule_.scale, exponent_); }
  [[nodiscard]] TokenLogit find_cut() const;
  [[nodiscard]] TokenLogit nucleus_cut(uint64_t needed) const;
  [[nodiscard]] F32x8 kept(size_t begin) const;

  const DrawRule& rule_;
  std::span<const float> logits_;
  std::vector<TokenLogit>& scratch_;
  Chunks chunks_;
  float best_ = 0.0F;
  int32_t exponent_ = 0;
  TokenLogit cut_{};    // the worst token that top-k and top-p leave
  float least_ = 0.0F;  // the least logit that min-p leaves
};

constexpr TokenLogit kKeepsAll{.id = std::numeric_limits<int32_t>::max(), .logit = -kInfinity};

/// The worst of the best tokens that together have `needed` units. Sorting a vocabulary takes longer than a decode
/// step, so tokens are put into buckets of like weight first, and only the bucket where the sum gets there is sorted.
TokenLogit RowDraw::nucleus_cut(uint64_t needed) const {
  constexpr int kBuckets = 16 * (int{kWeightBits} + 1);
  const float per_logit = 16.0F * rule_.scale;
  const float floor = least_logit(best_, rule_.reach);
  const auto buckets_of = [&](F32x8 values) {
    const F32x8 bucket = (best_ - values) * per_logit;
    const F32x8 last = simd::broadcast(kBuckets - 1);
    return __builtin_convertvector(simd::select(bucket < last, bucket, last), I32x8);  // NaN: last
  };
  std::vector<uint64_t> sums(kBuckets);
  std::array<uint64_t, kLanes> weights{};
  for (size_t i = 0; i < logits_.size(); i += kLanes) {
    const F32x8 values = load(logits_, i);
    store_units(units_of(simd::select(values >= floor, values, simd::broadcast(-kInfinity)), rule_.scale, exponent_),
                weights.data());
    const I32x8 bucket = buckets_of(values);
    for (size_t lane = 0; lane < kLanes; ++lane) sums[static_cast<size_t>(bucket[lane])] += weights[lane];
  }
  int cut = 0;
  uint64_t sum = 0;
  while (cut < kBuckets - 1 && sum + sums[static_cast<size_t>(cut)] < needed) sum += sums[static_cast<size_t>(cut++)];

  scratch_.clear();
  for (size_t i = 0; i < logits_.size(); i += kLanes) {
    const F32x8 values = load(logits_, i);
    const I32x8 found = (buckets_of(values) == cut) & (values >= floor);
    for (size_t lane = 0; lane < kLanes; ++lane) {
      if (found[lane] != 0) scratch_.push_back({.id = static_cast<int32_t>(i + lane), .logit = values[lane]});
    }
  }
  std::sort(scratch_.begin(), scratch_.end(), better);
  for (const TokenLogit& token : scratch_) {
    sum += units(token.logit);
    if (sum >= needed) return token;
  }
  return kKeepsAll;  // the sum of all fell short of `needed` by rounding
}

/// The worst token that top-k and top-p leave.
TokenLogit RowDraw::find_cut() const {
  if (rule_.top_k == 0) {
    return rule_.top_p < 1.0 ? nucleus_cut(units_of_top_p(rule_.top_p, chunks_.total(rule_.scale))) : kKeepsAll;
  }
  best_logits(logits_, rule_.top_k, scratch_);
  const float floor = least_logit(best_, rule_.reach);
  std::erase_if(scratch_, [&](const TokenLogit& token) { return token.logit < floor; });
  if (rule_.top_p >= 1.0) return scratch_.back();
  uint64_t total = 0;
  for (const TokenLogit& token : scratch_) total += units(token.logit);
  const uint64_t needed = units_of_top_p(rule_.top_p, total);
  uint64_t sum = 0;
  for (const TokenLogit& token : scratch_) {
    sum += units(token.logit);
    if (sum >= needed) return token;
  }
  return scratch_.back();
}

/// Eight logits from `begin` on, -inf for those that top-k, top-p and min-p leave out.
F32x8 RowDraw::kept(size_t begin) const {
  const F32x8 logits = load(logits_, begin);
  if (!rule_.cuts) return logits;
  const I32x8 ids = I32x8{0, 1, 2, 3, 4, 5, 6, 7} + static_cast<int32_t>(begin);
  const I32x8 above = (logits > cut_.logit) | ((logits == cut_.logit) & (ids <= cut_.id));
  return simd::select(above & (logits >= least_), logits, simd::broadcast(-kInfinity));
}

/// First the chunk that the draw falls into, then the token.
int32_t RowDraw::draw(double uniform) {
  if (rule_.cuts) {
    cut_ = find_cut();
    least_ = least_logit(best_, rule_.min_p_reach);
    for (size_t i = 0; i < chunks_.sums.size(); ++i) {
      if (chunks_.best[i] < std::max(least_, cut_.logit)) {
        chunks_.sums[i] = 0;
      } else {
        chunks_.sums[i] = sum_chunk(i * kChunk, std::min(logits_.size(), (i + 1) * kChunk), rule_.scale,
                                    chunks_.best[i], [&](size_t at) { return kept(at); });
      }
    }
  }
  const auto chunk_total = [&](size_t chunk) { return chunks_.units(chunk, rule_.scale, exponent_); };
  uint64_t left = drawn_unit(uniform, chunks_.total(rule_.scale));
  size_t chunk = 0;
  for (uint64_t units = chunk_total(0); left >= units; units = chunk_total(++chunk)) left -= units;
  const int32_t reference = weight_exponent(chunks_.best[chunk], rule_.scale);
  left <<= static_cast<uint32_t>(exponent_ - reference);
  std::array<uint64_t, kLanes> weights{};
  for (size_t i = chunk * kChunk;; i += kLanes) {
    store_units(units_of(kept(i), rule_.scale, reference), weights.data());
    for (size_t lane = 0; lane < kLanes; ++lane) {
      if (left < weights[lane]) return static_cast<int32_t>(i + lane);
      left -= weights[lane];
    }
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
  const int32_t token = first_of(logits, largest(logits));
  check_as(ErrorKind::kInternal, std::cmp_less(token, logits.size()), "logits: expected at least one number, all ",
           logits.size(), " are NaN");
  return token;
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

Penalties penalties_of(const SamplingParams& params) {
  return {.repetition = params.repetition_penalty,
          .presence = params.presence_penalty,
          .frequency = params.frequency_penalty};
}

DrawRule draw_rule(const SamplingParams& params, int64_t vocab_size) {
  if (params.temperature < kGreedyTemperature) return {};
  DrawRule rule{.greedy = false,
                .cuts = false,
                .scale = static_cast<float>(std::numbers::log2e / params.temperature),
                .top_k = params.top_k < vocab_size ? params.top_k : 0,
                .top_p = params.top_p,
                .reach = kWeightBits * std::numbers::ln2 * params.temperature,
                .seed = params.seed};
  rule.min_p_reach = std::min(rule.reach, -params.temperature * std::log(params.min_p));
  rule.cuts = rule.top_k > 0 || rule.top_p < 1.0 || params.min_p > 0.0;
  return rule;
}

int32_t sample_token(const SamplingParams& params, std::span<const float> logits, int64_t position,
                     std::vector<TokenLogit>& scratch) {
  const DrawRule rule = draw_rule(params, std::ssize(logits));
  const auto check_best = [&](float best) {
    check_as(ErrorKind::kInternal, best > -kInfinity, "logits: expected at least one of ", logits.size(),
             " above -inf and not NaN");
    return best;
  };
  if (rule.greedy) return first_of(logits, check_best(largest(logits)));
  RowDraw row(rule, logits, scratch);
  check_best(row.best());
  return row.has_weights() ? row.draw(uniform_draw(rule.seed, position)) : first_of(logits, row.best());
}

double log_of(const WeightSum& row) {
  if (!has_exponent(row.best, kLog2e)) return std::numeric_limits<double>::quiet_NaN();
  // Relative to the best token's weight: rounding errors are those of small distances only, and no probability
  // exceeds 1.
  const uint64_t of_best = weight_units(row.best, kLog2e, weight_exponent(row.best, kLog2e));
  return double{row.best} + std::log(static_cast<double>(row.sum) / static_cast<double>(of_best));
}

double log_sum_exp(std::span<const float> logits) {
  const bool any_nan = std::any_of(logits.begin(), logits.end(), [](float logit) { return std::isnan(logit); });
  if (any_nan) return log_of({});
  const Chunks chunks = sum_chunks(logits, kLog2e);
  return log_of({.sum = chunks.total(kLog2e), .best = chunks.row_best()});
}

double log_probability(std::span<const float> logits, int32_t token) {
  check(token >= 0 && static_cast<size_t>(token) < logits.size(), "token id ", token, ": expected 0 to ",
        logits.size() - 1);
  return logits[static_cast<size_t>(token)] - log_sum_exp(logits);
}

}  // namespace quaver
