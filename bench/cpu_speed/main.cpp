// Generation speed on the CPU against what this machine allows, all measured in one run:
//   decode   tokens/s against memory bandwidth / bytes of the weights (every step reads them once),
//   prefill  time against BLAS sgemm of the same layer shapes on FP32 weights.
// usage: bench_cpu_speed MODEL_DIR [fp8|bf16] [prompt tokens] [decode tokens] [rounds]
// The best of the rounds counts, since other programs can only slow one down. JSON on stdout. Set
// OMP_WAIT_POLICY=passive, as the Python package does: spinning threads lose their core when it is shared.
#include <cblas.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "core/check.h"
#include "engine/generator.h"

namespace {

using namespace quaver;

double seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Bytes per second of all threads reading a buffer of the weights' size.
double read_bandwidth(const std::vector<uint64_t>& buffer) {
  const uint64_t* const data = buffer.data();
  const auto count = static_cast<int64_t>(buffer.size());
  uint64_t total = 0;
  const double time = seconds([&] {
#pragma omp parallel for simd schedule(static) reduction(+ : total)
    for (int64_t i = 0; i < count; ++i) total += data[i];
  });
  check(total == buffer.size(), "sum ", total, ": expected ", buffer.size());
  return static_cast<double>(buffer.size() * sizeof(uint64_t)) / time;
}

int num_threads() {
  int count = 0;
#pragma omp parallel reduction(+ : count)
  ++count;
  return count;
}

/// Shapes [N, K] of all matrices of all layers.
std::vector<std::pair<int, int>> layer_shapes(const ModelWeights& weights) {
  std::vector<std::pair<int, int>> shapes;
  for (const LayerWeights& layer : weights.layers) {
    for (const LinearWeight* w : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      if (w->given()) shapes.emplace_back(static_cast<int>(w->out_features()), static_cast<int>(w->in_features()));
    }
  }
  return shapes;
}

/// Seconds that BLAS needs for y = x W^T with `rows` rows of x, over all shapes.
double sgemm_time(const std::vector<std::pair<int, int>>& shapes, int rows) {
  size_t largest = 0;
  size_t widest = 0;
  for (const auto& [n, k] : shapes) {
    largest = std::max(largest, static_cast<size_t>(n) * static_cast<size_t>(k));
    widest = std::max(widest, static_cast<size_t>(std::max(n, k)));
  }
  const std::vector<float> w(largest, 0.5F);
  const std::vector<float> x(widest * static_cast<size_t>(rows), 0.5F);
  std::vector<float> y(x.size());
  return seconds([&] {
    for (const auto& [n, k] : shapes) {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, n, k, 1.0F, x.data(), k, w.data(), k, 0.0F, y.data(),
                  n);
    }
  });
}

nlohmann::json run(const std::string& directory, const GeneratorOptions& options, int prompt_tokens, int decode_tokens,
                   int rounds) {
  Generator generator = Generator::load(directory, options);
  std::vector<int32_t> prompt(static_cast<size_t>(prompt_tokens));
  for (size_t i = 0; i < prompt.size(); ++i) {
    prompt[i] = static_cast<int32_t>(1000 + i * 7919 % static_cast<size_t>(generator.config().vocab_size - 1000));
  }
  const std::vector<int32_t> last_row{prompt_tokens - 1};
  const std::span<const int32_t> short_prompt = std::span(prompt).first(std::min<size_t>(16, prompt.size()));
  const int64_t weight_bytes = generator.weights().bytes;
  const std::vector<uint64_t> buffer(static_cast<size_t>(weight_bytes) / sizeof(uint64_t), 1);
  const std::vector<std::pair<int, int>> shapes = layer_shapes(generator.weights());

  double bandwidth = 0;
  double decode_rate = 0;
  double prefill_time = std::numeric_limits<double>::infinity();
  double blas_time = std::numeric_limits<double>::infinity();
  for (int round = 0; round < rounds; ++round) {
    bandwidth = std::max(bandwidth, read_bandwidth(buffer));
    const GenerationResult result = generator.generate(short_prompt, {.max_tokens = decode_tokens, .ignore_eos = true});
    decode_rate = std::max(decode_rate, result.decode_tokens_per_s);
    blas_time = std::min(blas_time, sgemm_time(shapes, prompt_tokens));
    prefill_time = std::min(prefill_time, seconds([&] { (void)generator.logits(prompt, last_row); }));
  }
  double flops = 0;
  for (const auto& [n, k] : shapes) flops += 2.0 * n * k * prompt_tokens;
  const double decode_limit = bandwidth / static_cast<double>(weight_bytes);
  return {
      {"model", directory},
      {"kv_cache_dtype", kv_dtype_name(options.kv_dtype)},
      {"threads", num_threads()},
      {"rounds", rounds},
      {"read_bandwidth_gb_s", bandwidth / 1e9},
      {"weight_bytes", weight_bytes},
      {"decode",
       {{"tokens_per_s", decode_rate}, {"limit_tokens_per_s", decode_limit}, {"ratio", decode_rate / decode_limit}}},
      {"prefill",
       {{"prompt_tokens", prompt_tokens},
        {"tokens_per_s", prompt_tokens / prefill_time},
        {"gflop_s", flops / prefill_time / 1e9},
        {"sgemm_gflop_s", flops / blas_time / 1e9},
        {"ratio", blas_time / prefill_time}}}};
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  try {
    check(!args.empty() && args.size() <= 5,
          "arguments: expected MODEL_DIR [fp8|bf16] [prompt tokens] [decode tokens] [rounds]");
    const auto number = [&](size_t index, std::string_view name, int fallback) {
      return args.size() > index ? bench::integer_argument(name, args[index], 1) : fallback;
    };
    GeneratorOptions options;
    if (args.size() > 1 && args[1] == "bf16") options.kv_dtype = KvDtype::kBF16;
    const nlohmann::json result =
        run(args[0], options, number(2, "prompt tokens", 512), number(3, "decode tokens", 32), number(4, "rounds", 3));
    std::cout << result.dump(2) << '\n';
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "bench_cpu_speed: " << error.what() << '\n';
    return 1;
  }
}
