// bench_sampling: tokens from logits at Gemma's vocabulary, as one JSON file.
//
//   bench_sampling --out sampling.json [--commit HASH] [--driver VERSION] [--rows 1,128] [--idle-ms 40]
//
// Every figure is microseconds of one draw() of all rows in a CUDA graph of many. Logits are N(0, 2.5) plus, in all
// cases but "flat", a few likely tokens a row; the rows take turns through 268 MB, so that they come from memory, as
// behind an LM head of 128 rows. pct_read is the bytes of the logits a second over the read ceiling of the same run.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>

#include "arguments.h"
#include "attention/graph_timer.h"
#include "attention/timer.h"
#include "core/device_info.h"
#include "engine/device_sampler.h"

namespace quaver::bench {
namespace {

constexpr int64_t kVocab = 262144;
constexpr int64_t kPoolRows = 256;
constexpr int64_t kPastTokens = 8192;

struct Options : RunOptions {
  int idle_ms = 40;
  std::vector<int64_t> rows{1, 128};
};

struct Case {
  const char* name;
  RequestParams params{};
  double softcap = 30.0;
  bool flat = false;
};

std::vector<Case> cases() {
  const SamplingParams gemma{.temperature = 1.0, .top_k = 64, .top_p = 0.95, .seed = 1};  // its generation_config.json
  return {{.name = "greedy", .softcap = 0.0},
          {.name = "greedy_softcap"},
          {.name = "temperature", .params = {.sampling = {.temperature = 1.0, .seed = 1}}, .softcap = 0.0},
          {.name = "temperature_softcap", .params = {.sampling = {.temperature = 1.0, .seed = 1}}},
          {.name = "top_k_top_p", .params = {.sampling = gemma}},
          {.name = "min_p", .params = {.sampling = {.temperature = 1.0, .min_p = 0.05, .seed = 1}}},
          {.name = "top_p", .params = {.sampling = {.temperature = 1.0, .top_p = 0.95, .seed = 1}}},
          {.name = "top_p_flat", .params = {.sampling = {.temperature = 1.0, .top_p = 0.95, .seed = 1}}, .flat = true},
          {.name = "penalties", .params = {.sampling = {.repetition_penalty = 1.1, .frequency_penalty = 0.1}}},
          {.name = "logprobs_20", .params = {.logprobs = 20}}};
}

/// Rows are one pattern, turned: numbers enough for 268 MB would take seconds to draw.
std::vector<float> logits(int64_t rows, bool flat) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0F, 2.5F);
  std::vector<float> pattern(kVocab);
  for (float& logit : pattern) logit = normal(random);
  for (size_t i = 0; i < 40 && !flat; ++i) pattern[6007 * i] = 22.0F - 0.25F * static_cast<float>(i);
  std::vector<float> all;
  all.reserve(static_cast<size_t>(rows * kVocab));
  for (int64_t row = 0; row < rows; ++row) {
    const auto turn = pattern.begin() + row * 7919 % kVocab;
    all.insert(all.end(), turn, pattern.end());
    all.insert(all.end(), pattern.begin(), turn);
  }
  return all;
}

template <class T>
DeviceBuffer<T> upload(const std::vector<T>& values) {
  DeviceBuffer<T> buffer(std::ssize(values));
  check_cuda(cudaMemcpy(buffer.data(), values.data(), buffer.bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
  return buffer;
}

nlohmann::json measure(const Case& what, int64_t rows, const DeviceBuffer<float>& pool, GraphTimer& timer,
                       cudaStream_t stream) {
  DeviceSampler sampler(rows, kVocab, rows);
  std::mt19937 random(7);
  Step step;
  std::vector<int32_t> slots;
  for (int32_t row = 0; row < rows; ++row) {
    Step::SlotStart start;
    start.slot = row;
    start.params = what.params;
    start.prompt_len = kPastTokens;
    for (int64_t i = 0; i < kPastTokens; ++i) start.tokens.push_back(static_cast<int32_t>(random() % kVocab));
    sampler.start(start, stream);
    step.samples.push_back({.logit_row = row, .slot = row});
    slots.push_back(row);
  }
  const auto sample_slots = upload(slots);
  const auto no_targets = upload(std::vector<int32_t>(slots.size(), -1));
  const DeviceBuffer<Drawn> drawn(rows);
  const DeviceBuffer<DrawnLogprobs> logprobs(rows);
  DeviceSampler::Rows args{.count = rows,
                           .logits = nullptr,
                           .stride = kVocab,
                           .softcap = what.softcap,
                           .sample_slots = sample_slots.data(),
                           .target_slots = no_targets.data(),
                           .targets = no_targets.data(),
                           .extra = sampler.extra(step),
                           .drawn = drawn.data(),
                           .sample_logprobs = logprobs.data(),
                           .target_logprobs = logprobs.data()};
  check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  const int64_t places = kPoolRows / rows;
  const double us = timer.median_us(rows > 16 ? 20 : 200, [&](int i, cudaStream_t s) {
    args.logits = pool.data() + i % places * rows * kVocab;
    sampler.draw(args, s);
  });
  return {{"name", what.name}, {"rows", rows}, {"softcap", what.softcap}, {"us", us}};
}

nlohmann::json run(const Options& options) {
  const CudaStream stream = make_stream();
  GraphTimer timer(stream.get(), options.idle_ms);
  const DeviceBuffer<uint8_t> memory(int64_t{1} << 30);
  const double read = Timer(stream.get()).read_gbps(memory, memory.size());
  const DeviceBuffer<float> peaked = upload(logits(kPoolRows, false));
  const DeviceBuffer<float> flat = upload(logits(kPoolRows, true));
  nlohmann::json results = nlohmann::json::array();
  for (const int64_t rows : options.rows) {
    check(rows > 0 && rows <= kPoolRows, "rows ", rows, ": expected 1 to ", kPoolRows);
    for (const Case& what : cases()) {
      nlohmann::json result = measure(what, rows, what.flat ? flat : peaked, timer, stream.get());
      const double gbps = static_cast<double>(rows * kVocab * 4) / result["us"].get<double>() / 1e3;
      result["gbps"] = gbps;
      result["pct_read"] = 100.0 * gbps / read;
      std::printf("%s\n", result.dump().c_str());
      std::fflush(stdout);
      results.push_back(std::move(result));
    }
  }
  return {{"commit", options.commit},
          {"gpu", query_device(0).name},
          {"driver", options.driver},
          {"idle_ms", options.idle_ms},
          {"sm_clock_mhz", measure_sm_clock_mhz(stream.get())},
          {"ceilings", {{"read_gbps", read}}},
          {"cases", results}};
}

}  // namespace
}  // namespace quaver::bench

int main(int argc, char** argv) {
  using quaver::bench::Options;
  Options defaults;
  defaults.out = "sampling.json";
  const auto take = [](Options& options, const std::string& option, const std::string& value) {
    if (option == "--idle-ms") {
      options.idle_ms = quaver::bench::integer_argument(option, value, 0);
    } else if (option == "--rows") {
      options.rows = quaver::bench::integer_arguments(option, value, 1);
    } else {
      return false;
    }
    return true;
  };
  return quaver::bench::write_report("bench_sampling", argc, argv, defaults, take, quaver::bench::run);
}
