#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "core/check.h"
#include "ops/sampling.h"

namespace quaver {
namespace {

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

/// A token that may be drawn. `weight` is exp((logit - best logit) / temperature).
struct Candidate {
  int32_t id = 0;
  double weight = 0.0;
};

class CandidateList {
 public:
  CandidateList(const SamplingParams& params, std::span<const float> logits)
      : params_(params), logits_(logits), best_(logits[static_cast<size_t>(argmax(logits))]), ids_(logits.size()) {
    std::iota(ids_.begin(), ids_.end(), 0);
  }

  /// What top-k, top-p and min-p leave, in an order that only the logits decide.
  [[nodiscard]] std::vector<Candidate> kept() {
    const auto vocab = static_cast<int64_t>(ids_.size());
    const int64_t limit = params_.top_k > 0 ? std::min<int64_t>(params_.top_k, vocab) : vocab;
    if (limit < vocab) sort_first(limit);
    std::vector<Candidate> candidates;
    double total = 0.0;
    for (int64_t i = 0; i < limit; ++i) {
      const int32_t id = ids_[static_cast<size_t>(i)];
      candidates.push_back({id, weight(id)});
      total += candidates.back().weight;
    }
    if (params_.top_p < 1.0) keep_top_p(candidates, params_.top_p * total);
    std::erase_if(candidates, [&](const Candidate& c) { return c.weight == 0.0 || c.weight < params_.min_p; });
    return candidates;
  }

 private:
  [[nodiscard]] double weight(int32_t id) const {
    const double logit = logits_[static_cast<size_t>(id)];
    return std::isnan(logit) ? 0.0 : std::exp((logit - best_) / params_.temperature);
  }

  /// Brings the `count` most probable tokens to the front, equal ones by id.
  void sort_first(int64_t count) {
    const auto key = [&](int32_t id) {
      const float logit = logits_[static_cast<size_t>(id)];
      return std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit;
    };
    std::partial_sort(ids_.begin() + sorted_, ids_.begin() + count, ids_.end(),
                      [&](int32_t a, int32_t b) { return key(a) != key(b) ? key(a) > key(b) : a < b; });
    sorted_ = count;
  }

  /// The most probable candidates until their weights reach `mass`; at least one.
  void keep_top_p(std::vector<Candidate>& candidates, double mass) {
    const auto limit = static_cast<int64_t>(candidates.size());
    candidates.clear();
    double total = 0.0;
    for (int64_t i = 0; i < limit && (i == 0 || total < mass); ++i) {
      // Sorting the whole vocabulary takes longer than a decode step; top-p rarely needs more than a few hundred.
      if (i == sorted_) sort_first(std::min(limit, std::max<int64_t>(256, 8 * sorted_)));
      const int32_t id = ids_[static_cast<size_t>(i)];
      candidates.push_back({id, weight(id)});
      total += candidates.back().weight;
    }
  }

  const SamplingParams& params_;
  std::span<const float> logits_;
  double best_;
  std::vector<int32_t> ids_;
  int64_t sorted_ = 0;
};

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
  float best = -std::numeric_limits<float>::infinity();
  int64_t best_id = -1;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] > best || (best_id < 0 && logits[id] == best)) {
      best = logits[id];
      best_id = static_cast<int64_t>(id);
    }
  }
  check_as(ErrorKind::kInternal, best_id >= 0, "logits: expected at least one number, all ", logits.size(), " are NaN");
  return static_cast<int32_t>(best_id);
}

void apply_penalties(const SamplingParams& params, std::span<const int32_t> prompt, std::span<const int32_t> generated,
                     std::span<float> logits) {
  const auto known = [&](int32_t id) { return id >= 0 && static_cast<size_t>(id) < logits.size(); };
  if (params.repetition_penalty != 1.0) {
    std::unordered_set<int32_t> seen(prompt.begin(), prompt.end());
    seen.insert(generated.begin(), generated.end());
    const auto penalty = static_cast<float>(params.repetition_penalty);
    for (const int32_t id : seen) {
      if (!known(id)) continue;
      float& logit = logits[static_cast<size_t>(id)];
      logit = logit > 0.0F ? logit / penalty : logit * penalty;
    }
  }
  if (params.presence_penalty == 0.0 && params.frequency_penalty == 0.0) return;
  std::unordered_map<int32_t, int> counts;
  for (const int32_t id : generated) ++counts[id];
  for (const auto& [id, count] : counts) {
    if (!known(id)) continue;
    logits[static_cast<size_t>(id)] -= static_cast<float>(params.presence_penalty + params.frequency_penalty * count);
  }
}

double uniform_draw(uint64_t seed, int64_t position) {
  constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15U;
  const uint64_t bits = mix(mix(seed + kGoldenRatio) + static_cast<uint64_t>(position) * kGoldenRatio);
  return static_cast<double>(bits >> 11U) * 0x1p-53;
}

int32_t sample_token(const SamplingParams& params, std::span<const float> logits, int64_t position) {
  if (params.temperature < kGreedyTemperature) return argmax(logits);
  const std::vector<Candidate> candidates = CandidateList(params, logits).kept();
  double total = 0.0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  const double target = uniform_draw(params.seed, position) * total;
  double cumulative = 0.0;
  for (const Candidate& candidate : candidates) {
    cumulative += candidate.weight;
    if (cumulative > target) return candidate.id;
  }
  return candidates.back().id;
}

double log_probability(std::span<const float> logits, int32_t token) {
  check(token >= 0 && static_cast<size_t>(token) < logits.size(), "token id ", token, ": expected 0 to ",
        logits.size() - 1);
  double best = -std::numeric_limits<double>::infinity();
  for (const float logit : logits) best = std::max<double>(best, logit);
  double total = 0.0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit) - best);
  return logits[static_cast<size_t>(token)] - best - std::log(total);
}

}  // namespace quaver
