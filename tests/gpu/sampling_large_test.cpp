// Sampling at the size of serving: 128 rows of Gemma's vocabulary.
#include <gtest/gtest.h>

#include "sampling_case.h"

namespace quaver::testing {
namespace {

constexpr int64_t kVocab = 262144;
constexpr int32_t kRows = 128;

/// One pattern of N(0, 2.5) logits with some likely tokens, turned for every row.
LogitRows serving_rows() {
  LogitRows pattern = normal_rows(1, kVocab, 2.5F, 1);
  for (size_t i = 0; i < 40; ++i) pattern.row(0)[6007 * i] = 22.0F - 0.25F * static_cast<float>(i);
  LogitRows logits(kRows, kVocab, kVocab);
  for (int64_t row = 0; row < kRows; ++row) {
    std::ranges::rotate_copy(pattern.row(0), pattern.row(0).begin() + row * 7919 % kVocab, logits.row(row).begin());
  }
  return logits;
}

Step::SlotStart start_of(int32_t slot) {
  const std::vector<RequestParams> all = every_parameter();
  RequestParams params = all[static_cast<size_t>(slot) % all.size()];
  params.sampling.seed = static_cast<uint64_t>(slot);
  params.prompt_logprobs = slot % 21;
  return slot_start(slot, params, {slot, 2 * slot, 262143}, 2, {1, 106});
}

/// Every row has a token, every eighth a target too.
Step serving_step() {
  Step step;
  for (int32_t row = 0; row < kRows; ++row) {
    step.samples.push_back({.logit_row = row, .slot = row});
    if (row % 8 == 0) step.prompt_logprobs.push_back({.logit_row = row, .slot = row, .target = 1000 * row});
  }
  return step;
}

TEST(LargeSampling, DrawsAsTheCpuDoes) {
  SamplerPair pair(kRows, kVocab, kRows);
  for (int32_t slot = 0; slot < kRows; ++slot) pair.start(start_of(slot));
  const LogitRows logits = serving_rows();
  for (const double cap : {0.0, 30.0}) pair.step(serving_step(), logits, cap);
}

// Two runs have the same bits, and a row alone those of the row among others.
TEST(LargeSampling, RunsAndBatchesAreBitwiseEqual) {
  const LogitRows logits = serving_rows();
  const Step step = serving_step();
  const auto run = [&] {
    DeviceSampler sampler(kRows, kVocab, kRows);
    for (int32_t slot = 0; slot < kRows; ++slot) sampler.start(start_of(slot), nullptr);
    DeviceRows device(step, logits, 30.0);
    device.rows().extra = sampler.extra(step);
    for (int i = 0; i < 3; ++i) sampler.draw(device.rows(), nullptr);
    check_cuda(cudaDeviceSynchronize(), "draw");
    return device.result(step, kVocab);
  };
  const StepResult first = run();
  expect_same(first, run());
  for (const int32_t slot : {5, 63, 127}) {
    DeviceSampler sampler(kRows, kVocab, 1);
    sampler.start(start_of(slot), nullptr);
    Step alone;
    alone.samples = {{.logit_row = 0, .slot = slot}};
    LogitRows row(1, kVocab, kVocab);
    std::ranges::copy(LogitRows(logits).row(slot), row.row(0).begin());
    DeviceRows device(alone, row, 30.0);
    device.rows().extra = sampler.extra(alone);
    for (int i = 0; i < 3; ++i) sampler.draw(device.rows(), nullptr);
    check_cuda(cudaDeviceSynchronize(), "draw");
    EXPECT_EQ(device.result(alone, kVocab).tokens[0], first.tokens[static_cast<size_t>(slot)]);
  }
}

// The other end of the bounds: a vocabulary of 2^20 flat logits, cut in its middle.
TEST(LargeSampling, LargestVocabulary) {
  constexpr int64_t kMost = 1 << 20;
  SamplerPair pair(3, kMost, 3);
  pair.start(slot_start(0, {.sampling = {.temperature = 1.0, .top_p = 0.5, .seed = 1}}, {1}, 1));
  pair.start(slot_start(1, {.sampling = {.temperature = 1.0, .top_k = 500000, .seed = 2}}, {1}, 1));
  pair.start(slot_start(2, {.sampling = {.temperature = 1.0, .seed = 3}, .logprobs = 20}, {1}, 1));
  pair.step({0, 1, 2}, normal_rows(3, kMost, 1.0F, 2));
}

}  // namespace
}  // namespace quaver::testing
