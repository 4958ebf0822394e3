// The whole step on the GPU against the CPU's runner, on the small checkpoints of tests/golden. Tolerances are for the
// BF16 residual stream and products of the GPU; the CPU keeps activations in FP32.
#include "device_runner_case.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>

#include <gtest/gtest.h>

#include "engine/cpu_runner.h"
#include "testing/expect_error.h"
#include "testing/safetensors_writer.h"
#include "testing/temp_dir.h"
#include "testing/tiny_gemma.h"

namespace quaver {
namespace {

using testing::golden;
using testing::kEngine;
using testing::on_gpu;
using testing::runner_options;
using testing::Sequence;
using testing::StepDriver;
using testing::tokens_of;

std::unique_ptr<Runner> on_cpu(const std::filesystem::path& folder, const RunnerOptions& options) {
  return CpuRunner::load(folder, options, kEngine);
}

struct Distance {
  double mean = 0;
  double most = 0;
};

Distance distance(const std::vector<TokenLogprobs>& a, const std::vector<TokenLogprobs>& b) {
  EXPECT_EQ(a.size(), b.size());
  Distance result;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    EXPECT_EQ(a[i].token, b[i].token);
    const double difference = std::abs(double{a[i].logprob} - double{b[i].logprob});
    EXPECT_TRUE(std::isfinite(difference)) << i;
    result.mean += difference / static_cast<double>(a.size());
    result.most = std::max(result.most, difference);
  }
  return result;
}

struct ModelCase {
  std::string name;
  KvDtype dtype = KvDtype::kE4M3;
  double mean = 0;  ///< of differences of log-probabilities between GPU and CPU
  double most = 0;
};

class DeviceRunnerModels : public ::testing::TestWithParam<ModelCase> {};

TEST_P(DeviceRunnerModels, LogprobsAreTheCpusInOneChunkAndInMany) {
  const ModelCase& test = GetParam();
  const std::vector<int32_t> prompt = tokens_of(37, 1);
  const RunnerOptions options = runner_options(test.dtype);
  StepDriver cpu(on_cpu(golden(test.name), options));
  Sequence reference;
  const std::vector<TokenLogprobs> expected = cpu.prompt_logprobs(reference, prompt, prompt.size(), 5);
  for (const size_t chunk : {size_t{37}, size_t{13}}) {
    StepDriver gpu(on_gpu(golden(test.name), options));
    Sequence sequence{.slot = 3, .pages = {}};
    const Distance found = distance(gpu.prompt_logprobs(sequence, prompt, chunk, 5), expected);
    EXPECT_LT(found.mean, test.mean) << "chunk " << chunk;
    EXPECT_LT(found.most, test.most) << "chunk " << chunk;
    RecordProperty("mean_" + std::to_string(chunk), std::to_string(found.mean));
    RecordProperty("most_" + std::to_string(chunk), std::to_string(found.most));
  }
}

// With BF16 weights and cache the differences are those of transformers in BF16 against FP32 on the same tokens (mean
// 0.08, most 0.35; the logits have a deviation of 6.7). An FP8 cache adds codes that round the other way; static scales
// of activations also differ, since a fused weight has one.
INSTANTIATE_TEST_SUITE_P(All, DeviceRunnerModels,
                         ::testing::Values(ModelCase{"gemma3_tiny", KvDtype::kBF16, 0.1, 0.5},
                                           ModelCase{"gemma4_tiny", KvDtype::kBF16, 0.1, 0.5},
                                           ModelCase{"gemma3_tiny", KvDtype::kE4M3, 0.35, 1.2},
                                           ModelCase{"gemma4_tiny", KvDtype::kE4M3, 0.35, 1.2},
                                           ModelCase{"fp8_channel", KvDtype::kE4M3, 0.35, 1.6},
                                           ModelCase{"fp8_tensor", KvDtype::kE4M3, 0.6, 2.0}),
                         [](const auto& param) {
                           return param.param.name + (param.param.dtype == KvDtype::kE4M3 ? "_fp8" : "_bf16");
                         });

// Images: two spans, the second one to a chunk's end; the log-probabilities are the CPU's, and not those of text.
TEST(DeviceRunner, SpansSeeEachOtherAsOnTheCpu) {
  struct Model {
    const char* name;
    KvDtype dtype;
    double mean, most;  // as of text
  };
  const std::vector<int32_t> prompt = tokens_of(37, 1);
  const std::vector<TokenSpan> images{{2, 11}, {12, 24}};
  for (const Model& model :
       {Model{"gemma3_tiny", KvDtype::kBF16, 0.1, 0.5}, Model{"gemma3_tiny", KvDtype::kE4M3, 0.35, 1.2},
        Model{"gemma4_tiny", KvDtype::kE4M3, 0.35, 1.2}}) {
    SCOPED_TRACE(std::string(model.name) + " " + std::string(kv_dtype_name(model.dtype)));
    const RunnerOptions options = runner_options(model.dtype);
    const auto logprobs = [&](std::unique_ptr<Runner> runner, size_t chunk, const std::vector<TokenSpan>& spans) {
      StepDriver driver(std::move(runner));
      Sequence sequence{.slot = 1, .spans = spans};
      return driver.prompt_logprobs(sequence, prompt, chunk, 3);
    };
    const auto expected = logprobs(on_cpu(golden(model.name), options), prompt.size(), images);
    for (const size_t chunk : {size_t{37}, size_t{24}}) {
      const Distance found = distance(logprobs(on_gpu(golden(model.name), options), chunk, images), expected);
      EXPECT_LT(found.mean, model.mean) << "chunk " << chunk;
      EXPECT_LT(found.most, model.most) << "chunk " << chunk;
    }
    const Distance text = distance(logprobs(on_gpu(golden(model.name), options), prompt.size(), {}), expected);
    EXPECT_GT(text.most, 2 * model.most);
  }
}

// Requests of a decode batch, prefilled together, then stepped with two steps in flight: tokens come by feedback.
struct Decoded {
  std::vector<std::vector<int32_t>> tokens;  // by step and request
  std::vector<std::vector<float>> logprobs;
  int64_t num_graphs = 0;
};

Decoded decode(std::unique_ptr<Runner> runner, int num_requests, int num_steps, const SamplingParams& sampling) {
  StepDriver driver(std::move(runner));
  std::vector<Sequence> sequences(static_cast<size_t>(num_requests));
  std::vector<Step> steps(static_cast<size_t>(num_steps));
  Decoded result;
  const auto take = [&] {
    const StepResult step = driver.runner().wait();
    EXPECT_TRUE(step.failures.empty());
    result.tokens.push_back(step.tokens);
    std::vector<float>& logprobs = result.logprobs.emplace_back();
    for (const auto& of_token : step.logprobs) logprobs.push_back(of_token.value().logprob);
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    int32_t slot = 0;
    for (Sequence& sequence : sequences) {
      if (i == 0) {
        sequence.slot = slot;
        const std::vector<int32_t> prompt = tokens_of(3 + 2 * slot, static_cast<uint64_t>(slot) + 10);
        StepDriver::start(steps[i], sequence, {.sampling = sampling, .logprobs = 2}, prompt);
        driver.add(steps[i], sequence, prompt);
      } else {
        driver.add(steps[i], sequence, {-1});
      }
      ++slot;
    }
    driver.finish(steps[i]);
    driver.runner().launch(steps[i]);
    if (i > 0) take();
  }
  take();
  if (const auto* const gpu = dynamic_cast<const DeviceRunner*>(&driver.runner()))
    result.num_graphs = gpu->num_graphs();
  return result;
}

// Graphs of the sizes 1, 2 and 4 run what is launched without them, bit for bit: the same kernels in the same order.
TEST(DeviceRunner, GraphsAreTheEagerStepsBitForBit) {
  struct Load {
    const char* model;
    int requests;
  };
  for (const auto& [model, requests] : {Load{"gemma3_tiny", 2}, Load{"gemma4_tiny", 1}, Load{"fp8_channel", 4}}) {
    const SamplingParams sampling{.temperature = 0.8, .seed = 3};
    const Decoded with_graphs =
        decode(on_gpu(golden(model), runner_options(KvDtype::kE4M3, true)), requests, 4, sampling);
    const Decoded eager = decode(on_gpu(golden(model), runner_options()), requests, 4, sampling);
    EXPECT_EQ(with_graphs.num_graphs, 3 + 1) << model;  // 1, 2, 4 of the start, and one that reports log-probabilities
    EXPECT_EQ(eager.num_graphs, 0);
    EXPECT_EQ(with_graphs.tokens, eager.tokens) << model << " " << requests;
    EXPECT_EQ(with_graphs.logprobs, eager.logprobs) << model << " " << requests;
  }
}

// A batch of 3 runs in the graph of 4: its padding row changes nothing, whatever its neighbours had been before.
TEST(DeviceRunner, PaddingIsNobodysNeighbour) {
  const RunnerOptions options = runner_options(KvDtype::kE4M3, true);
  const Decoded three = decode(on_gpu(golden("gemma4_tiny"), options), 3, 4, {});
  const Decoded four = decode(on_gpu(golden("gemma4_tiny"), options), 4, 4, {});
  for (size_t step = 1; step < three.tokens.size(); ++step) {
    for (size_t request = 0; request < 3; ++request) {
      EXPECT_EQ(three.tokens[step][request], four.tokens[step][request]) << step << " " << request;
      EXPECT_EQ(three.logprobs[step][request], four.logprobs[step][request]) << step << " " << request;
    }
  }
}

// Tokens that went from step to step on the device are those that the host would have sent.
TEST(DeviceRunner, FeedbackIsTheTokenDrawn) {
  const std::vector<int32_t> prompt = tokens_of(9, 5);
  const RequestParams params{.sampling = {.temperature = 5.0, .seed = 8}, .logprobs = 0};
  const auto text = [&](bool by_host) {
    StepDriver driver(on_gpu(golden("gemma3_tiny"), runner_options()));
    Sequence sequence{.slot = 2, .pages = {}};
    std::vector<int32_t> tokens;
    for (int i = 0; i < 8; ++i) {
      Step step;
      if (i == 0) StepDriver::start(step, sequence, params, prompt);
      driver.add(step, sequence, i == 0 ? prompt : std::vector<int32_t>{by_host ? tokens.back() : -1});
      tokens.push_back(driver.run(step).tokens.at(0));
    }
    return tokens;
  };
  EXPECT_EQ(text(false), text(true));
}

// One request with NaN logits fails; the one beside it in the batch gets its token.
TEST(DeviceRunner, NamesTheRequestWhoseLogitsAreNotNumbers) {
  const testing::TempDir folder;
  const nlohmann::json json = testing::tiny_gemma3_config();
  const ModelConfig config = parse_model_config(json.dump());
  folder.write("config.json", json.dump());
  testing::SafetensorsWriter file = testing::random_checkpoint(config, 11);
  // A huge embedding overflows in the first norm: inf / inf.
  std::string& embedding = file.tensors().at("model.embed_tokens.weight").bytes;
  const std::vector<float> huge(32, std::numeric_limits<float>::infinity());
  std::memcpy(embedding.data() + sizeof(float) * 32 * 50, huge.data(), sizeof(float) * 32);
  file.write(folder.path() / "model.safetensors");
  StepDriver driver(on_gpu(folder.path(), runner_options()));
  Sequence sick{.slot = 3, .pages = {}};
  Sequence healthy{.slot = 1, .pages = {}};
  Step step;
  StepDriver::start(step, sick, {}, {9, 50});
  StepDriver::start(step, healthy, {}, {9, 51});
  driver.add(step, sick, {9, 50});
  driver.add(step, healthy, {9, 51});
  const StepResult result = driver.run(step);
  ASSERT_EQ(result.failures.size(), 1U);
  EXPECT_EQ(result.failures[0].slot, 3);
  EXPECT_NE(result.failures[0].reason.find("NaN"), std::string::npos) << result.failures[0].reason;
  EXPECT_GE(result.tokens[1], 0);
}

// Continuous batching over the GPU: the texts are the CPU engine's as far as its second choice is not about as good.
TEST(DeviceRunner, EnginesAgreeOnGreedyText) {
  for (const char* const model : {"gemma3_tiny", "gemma4_tiny"}) {
    std::map<uint64_t, std::vector<Output>> answers[2];
    for (const bool gpu : {false, true}) {
      std::unique_ptr<Runner> runner =
          gpu ? on_gpu(golden(model), runner_options()) : on_cpu(golden(model), runner_options());
      Engine engine(std::move(runner), kEngine, {});
      for (uint64_t id = 0; id < 5; ++id) {
        Request request{
            .id = id, .prompt = tokens_of(static_cast<int64_t>(1 + id * 11), id), .params = {}, .cache_salt = {}};
        request.params.max_tokens = 6;
        request.params.logprobs = 2;
        engine.add(std::move(request));
      }
      size_t finished = 0;
      while (finished < 5) {
        for (Output& output : engine.wait(10)) {
          ASSERT_EQ(engine.failure(), "");
          finished += output.finish_reason ? 1 : 0;
          answers[gpu ? 1 : 0][output.request_id].push_back(std::move(output));
        }
      }
    }
    int compared = 0;
    for (const auto& [id, expected] : answers[0]) {
      const std::vector<Output>& got = answers[1].at(id);
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i) {
        const TokenLogprobs& best = expected[i].details->logprobs.value();
        if (best.top.at(0).second - best.top.at(1).second < 0.3F) break;
        EXPECT_EQ(got[i].token, expected[i].token) << model << " request " << id << " token " << i;
        EXPECT_NEAR(got[i].details->logprobs->logprob, best.logprob, 0.3)
            << model << " request " << id << " token " << i;
        ++compared;
      }
    }
    EXPECT_GE(compared, 15) << model;
  }
}

// A step that wants logits of last tokens alone leaves the others out of the last layer (and all of it but K and V
// where it wants none). The same tokens come after it as after a step that also asks for a row in the middle.
TEST(DeviceRunner, LastLayerOfLastTokens) {
  struct Load {
    const char* model;
    KvDtype dtype;
    double most;  // of differences of log-probabilities: other kernels multiply and attend to few rows
  };
  for (const auto& [model, dtype, most] :
       {Load{"gemma3_tiny", KvDtype::kBF16, 0.1}, Load{"gemma4_tiny", KvDtype::kE4M3, 0.3},
        Load{"fp8_channel", KvDtype::kE4M3, 0.3}}) {
    const auto drawn = [&](bool whole) {
      StepDriver driver(on_gpu(golden(model), runner_options(dtype)));
      std::vector<Sequence> sequences(3);
      std::vector<std::vector<int32_t>> prompts;
      std::vector<TokenLogprobs> result;
      const auto run = [&](Step& step) {
        driver.finish(step);
        if (whole) {  // the first token of the last sequence
          const int32_t row = step.batch.query_start[step.batch.query_start.size() - 2];
          step.batch.logit_rows.insert(std::ranges::lower_bound(step.batch.logit_rows, row), row);
          const auto index =
              static_cast<int32_t>(std::ranges::find(step.batch.logit_rows, row) - step.batch.logit_rows.begin());
          for (Step::Sample& sample : step.samples) sample.logit_row += sample.logit_row >= index ? 1 : 0;
          step.prompt_logprobs.push_back({.logit_row = index, .slot = sequences.back().slot, .target = 7});
        }
        driver.runner().launch(step);
        const StepResult out = driver.runner().wait();
        EXPECT_TRUE(out.failures.empty());
        for (const auto& logprobs : out.logprobs) {
          const TokenLogprobs& token = logprobs.value();
          for (const auto& [id, logprob] : token.top) result.push_back({.logprob = logprob});  // near ones swap places
        }
      };
      const auto piece = [](const std::vector<int32_t>& tokens, int64_t first, int64_t last) {
        return std::vector<int32_t>(tokens.begin() + first, tokens.begin() + last);
      };
      for (int32_t slot = 0; slot < 3; ++slot) {
        sequences[static_cast<size_t>(slot)].slot = slot;
        prompts.push_back(tokens_of(slot == 2 ? 21 : 1 + 8 * slot, static_cast<uint64_t>(slot) + 20));
      }
      Step chunk;  // nothing is drawn
      StepDriver::start(chunk, sequences[2], {.logprobs = 5, .prompt_logprobs = 0}, prompts[2]);
      driver.add(chunk, sequences[2], piece(prompts[2], 0, 13), false);
      run(chunk);
      Step mixed;
      for (size_t i = 0; i < 2; ++i) {
        StepDriver::start(mixed, sequences[i], {.logprobs = 5}, prompts[i]);
        driver.add(mixed, sequences[i], prompts[i]);
      }
      driver.add(mixed, sequences[2], piece(prompts[2], 13, 21));
      run(mixed);
      return result;
    };
    const std::vector<TokenLogprobs> last = drawn(false);
    EXPECT_EQ(last.size(), 3U * 5);
    const Distance found = distance(last, drawn(true));
    EXPECT_LT(found.most, most) << model;
    RecordProperty(std::string("most_") + model, std::to_string(found.most));
  }
}

TEST(DeviceRunner, RefusesWhatItCannotHonour) {
  const auto refused = [](const RunnerOptions& options, const EngineOptions& engine, ErrorKind kind,
                          std::initializer_list<std::string_view> parts) {
    testing::expect_error([&] { (void)on_gpu(golden("gemma3_tiny"), options, engine); }, kind, parts);
  };
  RunnerOptions options = runner_options();
  options.kv_cache_bytes = int64_t{1} << 50;
  options.block_size = 128;
  options.hf_overrides = R"({"max_position_embeddings": 131072})";
  refused(options, {.max_model_len = 131072, .max_num_seqs = 16384}, ErrorKind::kOutOfMemory, {"expected at most the"});
  options.kv_cache_bytes = 100;
  refused(options, kEngine, ErrorKind::kInvalidArgument, {"kv_cache_memory_bytes 100"});
  StepDriver driver(on_gpu(golden("gemma3_tiny"), runner_options()));
  EXPECT_TRUE(driver.runner().takes_spans());
  EngineOptions fixed = kEngine;
  fixed.batch_invariant = true;
  EXPECT_FALSE(on_gpu(golden("gemma3_tiny"), runner_options(), fixed)->takes_spans());
  testing::expect_error([&] { (void)driver.runner().wait(); }, ErrorKind::kInternal, {"steps in flight 0"});
}

}  // namespace
}  // namespace quaver
