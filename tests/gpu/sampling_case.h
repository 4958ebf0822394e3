// The same requests and logits through Sampler (CPU) and DeviceSampler: every token, log-probability and reason of a
// failure must have the same bits.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "device_case.h"
#include "engine/device_sampler.h"
#include "engine/read_draws.h"
#include "engine/sampler.h"
#include "ops/softcap.h"
#include "testing/expect_error.h"
#include "testing/random.h"

namespace quaver::testing {

inline Step::SlotStart slot_start(int32_t slot, const RequestParams& params, std::vector<int32_t> tokens,
                                  int64_t prompt_len, std::vector<int32_t> stop_ids = {}) {
  Step::SlotStart start;
  start.slot = slot;
  start.params = params;
  start.tokens = std::move(tokens);
  start.prompt_len = prompt_len;
  start.stop_token_ids = std::move(stop_ids);
  return start;
}

/// Logits [rows, stride] with `vocab` in use, NaN behind them.
struct LogitRows {
  LogitRows(int64_t num_rows, int64_t vocab_size, int64_t row_stride)
      : rows(num_rows),
        vocab(vocab_size),
        stride(row_stride),
        values(static_cast<size_t>(num_rows * row_stride), NAN) {}
  [[nodiscard]] std::span<float> row(int64_t i) {
    return std::span(values).subspan(static_cast<size_t>(i * stride), static_cast<size_t>(vocab));
  }
  int64_t rows, vocab, stride;
  std::vector<float> values;
};

/// N(0, deviation) logits; rows begin at multiples of 16 bytes.
inline LogitRows normal_rows(int64_t rows, int64_t vocab, float deviation, uint64_t seed) {
  LogitRows logits(rows, vocab, (vocab + 3) / 4 * 4);
  Random random(seed);
  for (int64_t i = 0; i < rows; ++i) {
    for (float& logit : logits.row(i)) logit = deviation * random.normal();
  }
  return logits;
}

/// Logits of one of several kinds: spread, flat, few values, many forbidden, equal, huge, with NaN or infinities.
inline void fill_random(std::span<float> logits, Random& random) {
  const int64_t kind = random.below(9);
  const float deviation = kind == 1 ? 0.01F : kind == 5 ? 1e6F : 3.0F;
  for (float& logit : logits) {
    logit = deviation * random.normal();
    if (kind == 2) logit = std::round(logit);
    if (kind == 3 && random.below(8) != 0) logit = -INFINITY;
    if (kind == 4) logit = -7.25F;
    if (kind == 6 && random.below(50) == 0) logit = NAN;
    if (kind == 7) logit = random.below(3) == 0 ? 0.0F : -0.0F;
    if (kind == 8 && random.below(100) == 0) logit = random.below(9) == 0 ? INFINITY : -INFINITY;
  }
}

template <class T>
[[nodiscard]] T one_of(Random& random, std::initializer_list<T> values) {
  return values.begin()[random.below(std::ssize(values))];
}

/// A request with any of the parameters, and some past.
inline Step::SlotStart random_start(int32_t slot, int64_t vocab, Random& random) {
  const auto token = [&] { return static_cast<int32_t>(random.below(vocab)); };
  const auto maybe = [&](double value) { return random.below(3) == 0 ? value : 0.0; };
  RequestParams params;
  params.sampling = {.temperature = one_of(random, {0.0, 0.3, 1.0, 1.0, 2.5, 1e300}),
                     .top_k = one_of(random, {0, 0, 1, 5, 64, 300, 5000}),
                     .top_p = one_of(random, {1.0, 1.0, 0.95, 0.5, 1e-6, 0.9999999}),
                     .min_p = one_of(random, {0.0, 0.0, 0.05, 1.0}),
                     .repetition_penalty = 1.0 + maybe(0.4),
                     .presence_penalty = maybe(-1.5),
                     .frequency_penalty = maybe(0.7),
                     .seed = random.bits()};
  params.min_tokens = random.below(4);
  params.logprobs = static_cast<int>(random.below(23)) - 2;
  params.prompt_logprobs = static_cast<int>(random.below(6));
  for (int64_t i = random.below(5); i > 0; --i) {
    params.logit_bias.emplace_back(token(), static_cast<float>(random.below(200) - 100));
  }
  std::vector<int32_t> tokens;
  for (int64_t i = 1 + random.below(30); i > 0; --i) tokens.push_back(token());
  const int64_t prompt_len = 1 + random.below(std::ssize(tokens));
  return slot_start(slot, params, tokens, prompt_len, {token(), token()});
}

/// A request for each parameter alone.
inline std::vector<RequestParams> every_parameter() {
  return {{},
          {.sampling = {.temperature = 1.0, .seed = 1}},
          {.sampling = {.temperature = 0.7, .top_k = 1, .seed = 2}},
          {.sampling = {.temperature = 1.5, .top_k = 40, .seed = 3}},
          {.sampling = {.temperature = 1.0, .top_p = 0.9, .seed = 4}},
          {.sampling = {.temperature = 1.0, .top_p = 1e-9, .seed = 5}},
          {.sampling = {.temperature = 1.0, .min_p = 0.1, .seed = 6}},
          {.sampling = {.temperature = 1.0, .top_k = 64, .top_p = 0.95, .seed = 7}},
          {.sampling = {.repetition_penalty = 1.3}},
          {.sampling = {.presence_penalty = 1.5, .frequency_penalty = 0.5}},
          {.max_tokens = 9, .min_tokens = 3},
          {.logit_bias = {{0, 5.0F}, {6, -100.0F}, {0, 2.0F}}},
          {.logprobs = 5},
          {.sampling = {.temperature = 1.0, .seed = 8}, .logprobs = 0}};
}

/// What CpuRunner makes of a step's logits.
inline StepResult cpu_result(Sampler& sampler, const Step& step, LogitRows logits, double cap) {
  StepResult result;
  Sampler::Scratch scratch;
  if (cap > 0) {
    for (int64_t i = 0; i < logits.rows; ++i) softcap(logits.row(i).data(), logits.vocab, cap);
  }
  const auto guarded = [&](int32_t slot, const auto& work) {
    try {
      work();
    } catch (const Error& error) {
      result.failures.push_back({.slot = slot, .reason = error.what()});
    }
  };
  for (const Step::PromptLogprob& wanted : step.prompt_logprobs) {
    TokenLogprobs& entry = result.prompt_logprobs.emplace_back();
    guarded(wanted.slot, [&] {
      entry = token_logprobs(logits.row(wanted.logit_row), wanted.target, sampler.params(wanted.slot).prompt_logprobs);
    });
  }
  for (const Step::Sample& sample : step.samples) {
    result.tokens.push_back(-1);
    result.logprobs.emplace_back();
    guarded(sample.slot, [&] {
      Sampler::Drawn drawn = sampler.draw(sample.slot, logits.row(sample.logit_row), scratch);
      result.tokens.back() = drawn.token;
      result.logprobs.back() = std::move(drawn.logprobs);
    });
  }
  return result;
}

/// One step's rows in device memory, with room for the results.
class DeviceRows {
 public:
  DeviceRows(const Step& step, const LogitRows& logits, double cap)
      : logits_(to_device(logits.values)),
        drawn_(logits.rows),
        sample_logprobs_(logits.rows),
        target_logprobs_(logits.rows) {
    const auto rows = static_cast<size_t>(logits.rows);
    std::vector<int32_t> sample_slots(rows, -1);
    std::vector<int32_t> target_slots(rows, -1);
    std::vector<int32_t> targets(rows, -1);
    for (const Step::Sample& sample : step.samples) sample_slots[static_cast<size_t>(sample.logit_row)] = sample.slot;
    for (const Step::PromptLogprob& wanted : step.prompt_logprobs) {
      target_slots[static_cast<size_t>(wanted.logit_row)] = wanted.slot;
      targets[static_cast<size_t>(wanted.logit_row)] = wanted.target;
    }
    sample_slots_ = to_device(sample_slots);
    target_slots_ = to_device(target_slots);
    targets_ = to_device(targets);
    rows_ = {.count = logits.rows,
             .logits = logits_.data(),
             .stride = logits.stride,
             .softcap = cap,
             .sample_slots = sample_slots_.data(),
             .target_slots = target_slots_.data(),
             .targets = targets_.data(),
             .extra = {},
             .drawn = drawn_.data(),
             .sample_logprobs = sample_logprobs_.data(),
             .target_logprobs = target_logprobs_.data()};
  }
  [[nodiscard]] DeviceSampler::Rows& rows() { return rows_; }
  [[nodiscard]] std::vector<Drawn> drawn() const { return to_host(drawn_); }
  [[nodiscard]] StepResult result(const Step& step, int64_t vocab) const {
    const std::vector<Drawn> drawn = to_host(drawn_);
    const std::vector<DrawnLogprobs> sample_logprobs = to_host(sample_logprobs_);
    const std::vector<DrawnLogprobs> target_logprobs = to_host(target_logprobs_);
    return read_draws(step, {drawn, sample_logprobs, target_logprobs}, vocab);
  }

 private:
  DeviceBuffer<float> logits_;
  DeviceBuffer<int32_t> sample_slots_, target_slots_, targets_;
  DeviceBuffer<Drawn> drawn_;
  DeviceBuffer<DrawnLogprobs> sample_logprobs_, target_logprobs_;
  DeviceSampler::Rows rows_;
};

inline void expect_same(const TokenLogprobs& a, const TokenLogprobs& b) {
  EXPECT_EQ(a.token, b.token);
  EXPECT_EQ(a.rank, b.rank);
  EXPECT_EQ(std::memcmp(&a.logprob, &b.logprob, sizeof a.logprob), 0) << a.logprob << " " << b.logprob;
  EXPECT_EQ(a.top, b.top);
}

/// All but what failed draws left.
inline void expect_same(StepResult cpu, StepResult gpu) {
  const auto by_slot = [](const StepResult::Failure& a, const StepResult::Failure& b) {
    return a.slot != b.slot ? a.slot < b.slot : a.reason < b.reason;
  };
  std::ranges::sort(cpu.failures, by_slot);
  std::ranges::sort(gpu.failures, by_slot);
  ASSERT_EQ(cpu.failures.size(), gpu.failures.size());
  for (size_t i = 0; i < cpu.failures.size(); ++i) {
    EXPECT_EQ(cpu.failures[i].slot, gpu.failures[i].slot);
    EXPECT_EQ(cpu.failures[i].reason, gpu.failures[i].reason);
  }
  ASSERT_EQ(cpu.tokens.size(), gpu.tokens.size());
  for (size_t i = 0; i < cpu.tokens.size(); ++i) {
    if (cpu.tokens[i] < 0) continue;  // failed
    EXPECT_EQ(cpu.tokens[i], gpu.tokens[i]) << "sample " << i;
    ASSERT_EQ(cpu.logprobs[i].has_value(), gpu.logprobs[i].has_value()) << "sample " << i;
    if (cpu.logprobs[i]) expect_same(*cpu.logprobs[i], *gpu.logprobs[i]);
  }
  ASSERT_EQ(cpu.prompt_logprobs.size(), gpu.prompt_logprobs.size());
  for (size_t i = 0; i < cpu.prompt_logprobs.size(); ++i) expect_same(cpu.prompt_logprobs[i], gpu.prompt_logprobs[i]);
}

/// Both samplers, given the same requests.
class SamplerPair {
 public:
  SamplerPair(int64_t max_slots, int64_t vocab, int64_t max_rows) : gpu_(max_slots, vocab, max_rows), vocab_(vocab) {}

  void start(const Step::SlotStart& start) {
    cpu_.start(start);
    gpu_.start(start, nullptr);
  }

  /// Draws on both, compares, and returns what the CPU drew.
  std::vector<int32_t> step(const Step& step, const LogitRows& logits, double cap = 0) {
    const StepResult expected = cpu_result(cpu_, step, logits, cap);
    DeviceRows device(step, logits, cap);
    device.rows().extra = gpu_.extra(step);
    gpu_.draw(device.rows(), nullptr);
    check_cuda(cudaDeviceSynchronize(), "draw");
    expect_same(expected, device.result(step, vocab_));
    return expected.tokens;
  }

  /// One row for every slot in `slots`.
  std::vector<int32_t> step(const std::vector<int32_t>& slots, const LogitRows& logits, double cap = 0) {
    Step step;
    for (size_t i = 0; i < slots.size(); ++i) {
      if (slots[i] >= 0) step.samples.push_back({.logit_row = static_cast<int32_t>(i), .slot = slots[i]});
    }
    return this->step(step, logits, cap);
  }

  [[nodiscard]] Sampler& cpu() { return cpu_; }
  [[nodiscard]] DeviceSampler& gpu() { return gpu_; }

 private:
  Sampler cpu_;
  DeviceSampler gpu_;
  int64_t vocab_;
};

/// Four requests with random parameters over random logits side by side, three tokens each.
inline void expect_same_random_requests(uint64_t seed) {
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Random random(seed + 1000);
  constexpr std::array kVocabularies{1, 7, 1000, 4099, 9000};
  const int64_t vocab = kVocabularies[seed % kVocabularies.size()];
  constexpr int32_t kRows = 4;
  SamplerPair pair(kRows + 1, vocab, kRows);
  for (int32_t slot = 0; slot < kRows; ++slot) pair.start(random_start(slot, vocab, random));
  const double cap = random.below(2) == 0 ? 0.0 : 30.0;
  LogitRows logits(kRows, vocab, vocab + random.below(5));
  for (int32_t row = 0; row < kRows; ++row) fill_random(logits.row(row), random);
  for (int64_t token = 0; token < 3; ++token) {
    Step step;
    for (int32_t row = 0; row < kRows; ++row) {
      if (random.below(8) != 0) step.samples.push_back({.logit_row = row, .slot = row});
      if (random.below(4) == 0) {
        step.prompt_logprobs.push_back(
            {.logit_row = row, .slot = row, .target = static_cast<int32_t>(random.below(vocab))});
      }
    }
    pair.step(step, logits, cap);
  }
}

}  // namespace quaver::testing
