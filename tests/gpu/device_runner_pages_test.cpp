// Pages that sequences of a step share.
#include <gtest/gtest.h>

#include "device_runner_case.h"

namespace quaver::testing {
namespace {

/// Computes a prompt.
void prefill(StepDriver& driver, Sequence& sequence, const std::vector<int32_t>& prompt) {
  Step step;
  StepDriver::start(step, sequence, {.logprobs = 0}, prompt);
  driver.add(step, sequence, prompt);
  (void)driver.run(step);
}

/// What is drawn behind `token`.
TokenLogprobs after(StepDriver& driver, Sequence& sequence, int32_t token) {
  Step step;
  driver.add(step, sequence, {token});
  return driver.run(step).logprobs.at(0).value();
}

// Pages shared by a fork are copied before either owner writes.
TEST(DeviceRunner, CopiesSharedPagesFirst) {
  const std::vector<int32_t> prompt = tokens_of(20, 4);
  const auto alone = [&](int32_t token) {
    StepDriver driver(on_gpu(golden("gemma3_tiny"), runner_options()));
    Sequence sequence;
    prefill(driver, sequence, prompt);
    return after(driver, sequence, token);
  };
  StepDriver driver(on_gpu(golden("gemma3_tiny"), runner_options()));
  Sequence first;
  prefill(driver, first, prompt);
  Sequence second{.slot = 1, .pages = driver.manager().fork(first.pages)};
  Step both;
  StepDriver::start(both, second, {.logprobs = 0}, prompt);
  driver.add(both, first, {7});
  driver.add(both, second, {8});
  EXPECT_FALSE(both.page_copies.empty());
  const StepResult result = driver.run(both);
  EXPECT_NEAR(result.logprobs[0].value().logprob, alone(7).logprob, 1e-3);
  EXPECT_NEAR(result.logprobs[1].value().logprob, alone(8).logprob, 1e-3);
}

// A newcomer begins with a page whose last key the step computes for somebody else: it waits for that key.
TEST(DeviceRunner, NewcomerSeesThePageFilledInItsStep) {
  const std::vector<int32_t> prompt = tokens_of(127, 4);  // a tile holds 64 or 128 keys, a page 16
  constexpr EngineOptions kLong{.max_model_len = 160, .max_num_seqs = 4, .max_num_batched_tokens = 128};
  for (const char* const model : {"gemma3_tiny", "gemma4_tiny"}) {
    StepDriver alone(on_gpu(golden(model), runner_options(KvDtype::kE4M3, true), kLong));
    Sequence only;
    prefill(alone, only, prompt);
    (void)after(alone, only, 7);
    const TokenLogprobs expected = after(alone, only, 8);

    StepDriver driver(on_gpu(golden(model), runner_options(KvDtype::kE4M3, true), kLong));
    Sequence first;
    prefill(driver, first, prompt);
    Step both;
    driver.add(both, first, {7});
    Sequence second{.slot = 1, .pages = driver.manager().fork(first.pages)};
    StepDriver::start(both, second, {.logprobs = 0}, prompt);
    driver.add(both, second, {8});
    EXPECT_TRUE(both.page_copies.empty());
    const TokenLogprobs got = driver.run(both).logprobs.at(1).value();
    EXPECT_EQ(got.token, expected.token) << model;
    EXPECT_NEAR(got.logprob, expected.logprob, 1e-3) << model;
  }
}

}  // namespace
}  // namespace quaver::testing
