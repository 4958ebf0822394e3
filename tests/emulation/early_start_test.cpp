// Kernels that begin while those in front of them still run: what they read before griddepcontrol.wait was there.
#include "cuda_runtime.h"

#include <gtest/gtest.h>

#include "core/cuda.h"
#include "device_runner_case.h"
#include "new_keys.h"
#include "ptx/launch.cuh"
#include "simt/early_start.h"
#include "testing/expect_error.h"

namespace quaver::testing {
namespace {

struct Parameters {
  const int* from = nullptr;
  int* to = nullptr;
  bool reads_early = false;
  bool writes_early = false;
};

/// *to = *from + 1.
void add_kernel(const Parameters p) {
  int value = *p.from;
  if (p.writes_early) *p.to = value + 1;
  ptx::grid_dependency_wait();
  if (!p.reads_early) value = *p.from;
  *p.to = value + 1;
}

/// Three additions behind each other, the first one launched in the ordinary way.
int sum(const Parameters& last) {
  const DeviceBuffer<int> memory = to_device(std::vector<int>{10, 0, 0, 0});
  int* const at = memory.data();
  launch(add_kernel, dim3(1), 32, 0, nullptr, Parameters{.from = at, .to = at + 1});
  launch_programmatic(add_kernel, dim3(1), 32, 0, nullptr, Parameters{.from = at + 1, .to = at + 2});
  launch_programmatic(
      add_kernel, dim3(2), 32, 0, nullptr,
      Parameters{.from = at + 2, .to = at + 3, .reads_early = last.reads_early, .writes_early = last.writes_early});
  return to_host(memory)[3];
}

TEST(EarlyStart, SeesWhatWasThereBeforeTheOrdinaryLaunch) {
  EXPECT_EQ(sum({.reads_early = true}), 13);  // one after the other
  const simt::EarlyStart early;
  EXPECT_EQ(sum({}), 13);
  EXPECT_EQ(sum({.reads_early = true}), 1);
  expect_error([] { sum({.writes_early = true}); }, ErrorKind::kCuda, {"griddepcontrol.wait", "nothing to be written"});
  EXPECT_EQ(sum({}), 13);
}

// Decode behind append, as tests/gpu/decode_early_test.cpp has it.
TEST(EarlyStart, DecodeWaitsForNewKeysOnly) {
  for (const int head_dim : {64, 256}) {
    for (const int group : {1, 2, 10}) {
      SCOPED_TRACE(concat("d ", head_dim, ", group ", group));
      const Case host({.query_lens = {1, 3, 1, 2, 1, 0, 1},
                       .kv_lens = {1, 3, 65, 129, 700, 5, 320},
                       .num_q_heads = 2 * group,
                       .kv = {.num_kv_heads = 2, .head_dim_k = head_dim, .head_dim_v = head_dim, .page_size = 64}});
      DeviceCase device(host);
      device.problem.max_query_len = 3;
      DeviceAttention attention(device.problem, decode_plan(device.problem, Precision::kSplit), query_device(0),
                                device.limits());
      const NewKeys old_keys(host, device, 1);
      const NewKeys new_keys(host, device, 2);
      new_keys.append(nullptr);
      const Outputs expected = device.run(attention);
      const simt::EarlyStart early;
      const auto behind_append = [&](InFront in_front) {
        old_keys.append(nullptr);
        check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        device.poison();
        new_keys.append(nullptr);
        attention.run(device.args, nullptr, in_front);
        return device.outputs();
      };
      EXPECT_TRUE(behind_append(InFront::kNewKeys) == expected);
      EXPECT_TRUE(behind_append(InFront::kAnything) == expected);
    }
  }
}

/// Log-probabilities of two requests' steps: prompts together, then token by token, a newcomer that begins with pages
/// of the first one, and a chunk beside decode rows.
std::vector<float> served(const char* model, bool graphs) {
  constexpr EngineOptions kLong{.max_model_len = 192, .max_num_seqs = 4, .max_num_batched_tokens = 192};
  StepDriver driver(on_gpu(golden(model), runner_options(KvDtype::kE4M3, graphs), kLong));
  std::vector<float> found;
  const auto run = [&](Step& step) {
    for (const auto& drawn : driver.run(step).logprobs) found.push_back(drawn.value().logprob);
  };
  const auto prompt = [](int count) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < count; ++i) tokens.push_back(3 + 7 * i % 190);
    return tokens;
  };
  Sequence first{.slot = 0, .pages = {}};
  Sequence second{.slot = 1, .pages = {}};
  Step prompts;
  for (Sequence* const sequence : {&first, &second}) {
    const std::vector<int32_t> tokens =
        prompt(sequence == &first ? 127 : 15);  // a tile holds 64 or 128 keys, a page 16
    StepDriver::start(prompts, *sequence, {.logprobs = 0}, tokens);
    driver.add(prompts, *sequence, tokens);
  }
  run(prompts);
  Step newcomer;
  driver.add(newcomer, first, {7});
  Sequence third{.slot = 2, .pages = driver.manager().fork(first.pages)};
  StepDriver::start(newcomer, third, {.logprobs = 0}, prompt(127));
  driver.add(newcomer, third, {8});
  run(newcomer);
  for (int i = 0; i < 3; ++i) {
    Step decode;
    for (Sequence* const sequence : {&first, &second, &third}) driver.add(decode, *sequence, {-1});
    run(decode);
  }
  Step mixed;
  driver.add(mixed, first, {-1});
  driver.add(mixed, third, prompt(20));
  run(mixed);
  return found;
}

// Every kernel of a step, behind every other one.
TEST(EarlyStart, StepsAreTheSame) {
  for (const auto& [model, graphs] : {std::pair("gemma4_tiny", true), std::pair("fp8_channel", false)}) {
    const std::vector<float> expected = served(model, graphs);
    const simt::EarlyStart early;
    EXPECT_EQ(served(model, graphs), expected) << model;
  }
}

}  // namespace
}  // namespace quaver::testing
