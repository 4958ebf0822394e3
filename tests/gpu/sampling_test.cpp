// The sampling kernels draw what the CPU sampler draws, bit for bit.
#include <gtest/gtest.h>

#include <limits>

#include "sampling_case.h"

namespace quaver::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(DeviceSampling, EveryParameterAlone) {
  const std::vector<RequestParams> all = every_parameter();
  for (const int64_t vocab : {1, 7, 1000, 4099}) {
    const int64_t slots = std::ssize(all);
    SamplerPair pair(slots, vocab, slots);
    std::vector<int32_t> of_row;
    for (int32_t slot = 0; slot < slots; ++slot) {
      const auto last = static_cast<int32_t>(vocab - 1);
      pair.start(slot_start(slot, all[static_cast<size_t>(slot)], {last, 0, last / 2}, 2, {last, 0, 1 << 30}));
      of_row.push_back(slot);
    }
    for (uint64_t step = 0; step < 4; ++step) {
      SCOPED_TRACE(::testing::Message() << "vocabulary " << vocab << " step " << step);
      pair.step(of_row, normal_rows(slots, vocab, 3.0F, step));
    }
  }
}

// A vocabulary of Gemma's, with a last chunk of 64.
TEST(DeviceSampling, WholeVocabulary) {
  constexpr int64_t kVocab = 262208;
  SamplerPair pair(4, kVocab, 4);
  pair.start(slot_start(0, {.sampling = {.temperature = 1.0, .seed = 1}, .logprobs = 20}, {1, 2, 3}, 3));
  pair.start(slot_start(1, {.sampling = {.temperature = 1.0, .top_k = 64, .top_p = 0.95, .seed = 2}}, {1}, 1));
  pair.start(slot_start(2, {.sampling = {.temperature = 1.0, .top_p = 0.9, .seed = 3}}, {1}, 1));
  pair.start(slot_start(3, {.sampling = {.repetition_penalty = 1.2}}, {static_cast<int32_t>(kVocab - 1)}, 1));
  pair.step({0, 1, 2, 3}, normal_rows(4, kVocab, 2.5F, 7), 30.0);
}

// Requests of all kinds side by side over logits of all kinds, three tokens each.
TEST(DeviceSampling, RandomRequests) {
  for (uint64_t seed = 0; seed < 25; ++seed) expect_same_random_requests(seed);
}

/// Draws once from logits with several settings of top-k and top-p.
void expect_same_cuts(const LogitRows& logits, std::initializer_list<SamplingParams> all) {
  SamplerPair pair(1, logits.vocab, 1);
  for (const SamplingParams& params : all) {
    SCOPED_TRACE(::testing::Message() << "top_k " << params.top_k << " top_p " << params.top_p);
    for (int32_t length = 1; length < 4; ++length) {  // other draws
      pair.start(slot_start(0, {.sampling = params}, std::vector<int32_t>(static_cast<size_t>(length)), length));
      pair.step({0}, logits);
    }
  }
}

// More tokens above any bound than are sorted at once: the range is narrowed, in logits and then in orders of floats.
TEST(DeviceSampling, CutsFarDownTheRow) {
  constexpr int64_t kVocab = 30000;
  const auto settings = {SamplingParams{.temperature = 1.0, .top_p = 0.5, .seed = 1},
                         SamplingParams{.temperature = 1.0, .top_k = 9000, .seed = 2},
                         SamplingParams{.temperature = 1.0, .top_k = 20000, .top_p = 0.7, .seed = 3},
                         SamplingParams{.temperature = 1.0, .top_p = 0.999999, .seed = 4}};
  expect_same_cuts(normal_rows(1, kVocab, 1.0F, 3), settings);
  expect_same_cuts(normal_rows(1, kVocab, 1e-3F, 4), settings);
  LogitRows clustered(1, kVocab, kVocab);  // almost all within 1e-30 of zero, one far above
  Random random(5);
  for (float& logit : clustered.row(0)) logit = 1e-30F * random.normal();
  clustered.row(0)[77] = 20.0F;
  expect_same_cuts(clustered,
                   {{.temperature = 10.0, .top_p = 0.9, .seed = 5}, {.temperature = 10.0, .top_k = 15000, .seed = 6}});
}

// More equal logits than are sorted at once: the lowest ids stay.
TEST(DeviceSampling, CutsAmongTies) {
  LogitRows equal(1, 20000, 20000);
  for (float& logit : equal.row(0)) logit = 1.5F;
  LogitRows two(1, 20000, 20000);
  for (size_t i = 0; i < 20000; ++i) two.row(0)[i] = i % 3 == 0 ? 2.0F : -0.0F;
  for (const LogitRows& logits : {equal, two}) {
    expect_same_cuts(logits, {{.temperature = 1.0, .top_k = 1, .seed = 1},
                              {.temperature = 1.0, .top_k = 6000, .seed = 2},
                              {.temperature = 1.0, .top_k = 12345, .top_p = 0.9, .seed = 3},
                              {.temperature = 1.0, .top_p = 0.75, .seed = 4},
                              {.temperature = 1.0, .top_p = 0.9999999, .seed = 5}});
  }
}

// B37: NaN is never drawn, +inf always; a row of which nothing can be drawn fails alone, with the reason, and so does
// one with log-probabilities that are not finite.
TEST(DeviceSampling, LogitsThatAreNotNumbers) {
  constexpr int64_t kVocab = 2000;
  LogitRows logits = normal_rows(6, kVocab, 1.0F, 9);
  logits.row(0)[5] = NAN;
  logits.row(1)[1999] = kInfinity;
  std::ranges::fill(logits.row(2), NAN);
  std::ranges::fill(logits.row(3), -kInfinity);
  logits.row(4)[1] = -NAN;
  for (const double temperature : {0.0, 1.0}) {
    SamplerPair pair(6, kVocab, 6);
    for (int32_t slot = 0; slot < 6; ++slot) {
      pair.start(slot_start(slot,
                            {.sampling = {.temperature = temperature, .top_p = slot % 2 == 0 ? 0.9 : 1.0},
                             .logprobs = slot == 4 ? 1 : -1},
                            {3}, 1));
    }
    Step step;
    for (int32_t slot = 0; slot < 6; ++slot) step.samples.push_back({.logit_row = slot, .slot = slot});
    step.prompt_logprobs = {{.logit_row = 1, .slot = 1, .target = 3}, {.logit_row = 3, .slot = 3, .target = 3}};
    const std::vector<int32_t> tokens = pair.step(step, logits);
    EXPECT_EQ(tokens[1], 1999);
    for (const size_t failed : {2, 3, 4}) EXPECT_EQ(tokens[failed], -1);
    // What failed left the slot as it was: the next draw is that of an untouched slot.
    pair.step({0, 1, 2, 3, 4, 5}, normal_rows(6, kVocab, 1.0F, 10));
  }
}

// B40, B42: a slot's tokens do not depend on its neighbours, its number, its last owner, or a restart in the middle.
TEST(DeviceSampling, SlotsAreIndependentAndRestartable) {
  constexpr int64_t kVocab = 1500;
  const RequestParams params{
      .sampling = {.temperature = 0.9, .top_k = 40, .repetition_penalty = 1.3, .frequency_penalty = 0.4, .seed = 42}};
  SamplerPair pair(4, kVocab, 3);
  pair.start(slot_start(0, {.logit_bias = {{3, 9.0F}}}, {1, 2}, 2));
  pair.start(slot_start(0, params, {5, 6, 5, 9}, 4));
  std::vector<int32_t> text{5, 6, 5, 9};
  for (uint64_t i = 0; i < 12; ++i) text.push_back(pair.step({-1, 0, -1}, normal_rows(3, kVocab, 3.0F, i))[0]);
  pair.start(slot_start(3, params, {text.begin(), text.begin() + 9}, 4));
  for (uint64_t i = 5; i < 12; ++i) {
    LogitRows logits = normal_rows(3, kVocab, 3.0F, i);
    std::ranges::copy(std::vector(logits.row(1).begin(), logits.row(1).end()), logits.row(0).begin());
    EXPECT_EQ(pair.step({3, -1, -1}, logits)[0], text[i + 4]);
  }
}

// Counts end at 8,191 on both sides, in a restart and token by token.
TEST(DeviceSampling, CountsAreBounded) {
  SamplerPair pair(1, 10, 1);
  const RequestParams params{.sampling = {.frequency_penalty = -2.0}};
  pair.start(slot_start(0, params, std::vector<int32_t>(8190, 4), 0));
  LogitRows logits(1, 10, 12);
  std::ranges::fill(logits.row(0), 0.0F);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(pair.step({0}, logits)[0], 4);
  logits.row(0)[7] = 2.0F * 8191 - 1.0F;
  EXPECT_EQ(pair.step({0}, logits)[0], 4);
  logits.row(0)[7] = 2.0F * 8191 + 1.0F;
  EXPECT_EQ(pair.step({0}, logits)[0], 7);
}

// Lists that travel in several launches: 2,500 biases, 5,000 different tokens in the past.
TEST(DeviceSampling, LongLists) {
  constexpr int64_t kVocab = 6000;
  RequestParams params{.sampling = {.temperature = 1.0, .repetition_penalty = 1.5, .presence_penalty = 0.5, .seed = 1}};
  for (int32_t id = 0; id < 2500; ++id) params.logit_bias.emplace_back(2 * id, id % 2 == 0 ? 1.5F : -1.5F);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 5000; ++i) tokens.push_back(i * 7 % 5999);
  SamplerPair pair(1, kVocab, 1);
  pair.start(slot_start(0, params, tokens, 3000));
  for (uint64_t i = 0; i < 4; ++i) pair.step({0}, normal_rows(1, kVocab, 1.0F, i));
}

TEST(DeviceSampling, Feedback) {
  SamplerPair pair(3, 100, 2);
  pair.start(slot_start(0, {}, {11, 12}, 2));
  pair.start(slot_start(2, {}, {13}, 1));
  const auto fed = [&] {
    const auto slots = to_device(std::vector<int32_t>{-1, 2, 0, -1, 2});
    const auto ids = to_device(std::vector<int32_t>{50, -1, -1, 51, -1});
    pair.gpu().fill_feedback(slots.data(), 5, ids.data(), nullptr);
    return to_host(ids);
  };
  EXPECT_EQ(fed(), (std::vector<int32_t>{50, 13, 12, 51, 13}));
  const std::vector<int32_t> drawn = pair.step({2, 0}, normal_rows(2, 100, 1.0F, 1));
  EXPECT_EQ(fed(), (std::vector<int32_t>{50, drawn[0], drawn[1], 51, drawn[0]}));
}

// A graph of a padded batch draws again and again: slots and counts go on, padding writes nothing.
TEST(DeviceSampling, GraphReplay) {
  constexpr int64_t kVocab = 5000;
  constexpr int32_t kRows = 3;
  const LogitRows logits = normal_rows(kRows, kVocab, 3.0F, 1);
  const std::vector<RequestParams> all = {
      {.sampling = {.temperature = 1.0, .top_k = 50, .frequency_penalty = 0.5, .seed = 5}, .logprobs = 3},
      {.sampling = {.temperature = 1.0, .seed = 6}},
      {}};
  Step step;
  step.samples = {{.logit_row = 0, .slot = 2}, {.logit_row = 1, .slot = 1}};  // row 2 is padding
  const auto start_all = [&](auto& sampler, auto... stream) {
    for (int32_t slot = 0; slot < 3; ++slot) {
      sampler.start(slot_start(slot, all[static_cast<size_t>(2 - slot)], {7, 8}, 2), stream...);
    }
  };
  Sampler cpu;
  start_all(cpu);
  const CudaStream stream = make_stream();
  DeviceSampler gpu(3, kVocab, kRows);
  start_all(gpu, stream.get());
  DeviceRows device(step, logits, 0.0);
  device.rows().extra = gpu.extra(step);
  check_cuda(cudaDeviceSynchronize(), "upload");
  const CudaGraphExec graph =
      capture_graph(stream.get(), [&](cudaStream_t captured) { gpu.draw(device.rows(), captured); });
  for (int i = 0; i < 6; ++i) {
    check_cuda(cudaGraphLaunch(graph.get(), stream.get()), "cudaGraphLaunch");
    check_cuda(cudaStreamSynchronize(stream.get()), "draw");
    expect_same(cpu_result(cpu, step, logits, 0.0), device.result(step, kVocab));
  }
  EXPECT_EQ(device.drawn()[2].token, 0);  // as the memory was at first
}

TEST(DeviceSampling, RefusesByName) {
  expect_error([] { const DeviceSampler sampler(1, (1 << 20) + 1, 1); }, ErrorKind::kInvalidArgument,
               {"vocabulary of 1048577", "1048576"});
  DeviceSampler sampler(2, 10, 3);
  expect_error([&] { sampler.start(slot_start(2, {}, {1}, 1), nullptr); }, ErrorKind::kInvalidArgument, {"slot 2"});
  expect_error([&] { sampler.draw({.count = 4, .stride = 10}, nullptr); }, ErrorKind::kInvalidArgument, {"rows 4"});
  expect_error([&] { sampler.draw({.count = 1, .stride = 9}, nullptr); }, ErrorKind::kInvalidArgument, {"stride 9"});
}

}  // namespace
}  // namespace quaver::testing
