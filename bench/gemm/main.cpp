// bench_gemm: the packed FP8 GEMM at the shapes of Gemma 4 31B, as one JSON file.
//
//   bench_gemm --out gemm.json [--commit HASH] [--driver VERSION] [--tokens 1,64,128] [--idle-ms 40] [--hold-ms 0]
//              [--plans all] [--products down,gate_up_geglu] [--yardsticks no]
//
// Every figure is microseconds of one product inside a CUDA graph of many: the weights rotate over 1.4 GB, the graph is
// launched once to warm up and five times for the median, after an idle gap (the power limit lowers the clock of long
// runs); with --hold-ms it is the mean of the second half of so long a run. pct_read is the weights' bytes a second
// over the read ceiling of the same run; the yardsticks are cuBLASLt's row-wise scales with promoted and with fast
// accumulation, and per-tensor scales with fast accumulation. The error is that of the first 128 rows and up to 8
// tokens against float64 on the same codes. gate_up_geglu is gate_up with the gate of the MLP in its kernel;
// mlp_front_us times it with the quantisation behind it, and gate_up and cuBLASLt's row-wise product with
// geglu_quantize() behind them. lm_head is the BF16 product of the head through cuBLASLt, its bytes those
// of weight, rows and logits; --yardsticks no leaves both out. With --plans all, every plan that plan_gemm() chooses
// from is measured too.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "arguments.h"
#include "attention/device_data.h"
#include "attention/graph_timer.h"
#include "core/bf16.h"
#include "core/e4m3.h"
#include "gemm/cublaslt.h"
#include "gemm/packed_fp8/launch.h"
#include "ops/cuda/device_ops.h"

namespace quaver::bench {
namespace {

using packed_fp8::GemmPlan;
using packed_fp8::GemmShape;
using packed_fp8::Scaling;

constexpr int64_t kPoolBytes = int64_t{1400} << 20;
constexpr Device kGpu{.kind = Device::Kind::kCuda, .index = 0};

struct Product {
  const char* name;
  int64_t n, k;
};
constexpr std::array kProducts{Product{"gate_up", 43008, 5376},   Product{"down", 5376, 21504},
                               Product{"qkv_local", 16384, 5376}, Product{"o_local", 5376, 8192},
                               Product{"qk_global", 18432, 5376}, Product{"o_global", 5376, 16384}};

struct Options : RunOptions {
  int idle_ms = 40;
  int hold_ms = 0;
  std::vector<int64_t> tokens{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192};
  bool all_plans = false;
  bool yardsticks = true;
  std::string products;  ///< empty: all
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        most_tokens_(std::ranges::max(options.tokens)),
        pool_(kPoolBytes),
        tokens_(packed_fp8::packed_bytes(most_tokens_, 21504)),
        activations_(packed_fp8::packed_bytes(most_tokens_, 21504)),
        out_(most_tokens_ * 43008),
        token_scales_(most_tokens_),
        activation_scales_(most_tokens_),
        weight_scales_(43008) {
    fill_normal_e4m3(pool_.data(), pool_.size(), 1, stream_.get());
    fill_normal_e4m3(tokens_.data(), tokens_.size(), 2, stream_.get());
    const auto scales = [](const DeviceBuffer<float>& buffer, float base) {
      std::vector<float> values(static_cast<size_t>(buffer.size()));
      for (size_t i = 0; i < values.size(); ++i) values[i] = base * (1.0F + static_cast<float>(i % 7) / 8.0F);
      check_cuda(cudaMemcpy(buffer.data(), values.data(), buffer.bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
      return values;
    };
    host_token_scales_ = scales(token_scales_, 0.5F);
    host_weight_scales_ = scales(weight_scales_, 0.01F);
    check_cuda(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
  }

  nlohmann::json run() {
    const double read = read_gbps();
    nlohmann::json cases;
    for (const int64_t m : options_.tokens) {
      for (const Product& product : kProducts) {
        if (wanted(product.name)) cases.push_back(measure(product, m, read));
      }
      if (wanted("gate_up_geglu")) cases.push_back(measure_geglu(m, read));
    }
    return {{"commit", options_.commit},
            {"gpu", device_.name},
            {"driver", options_.driver},
            {"cublaslt", lt_ ? lt_->version() : "none"},
            {"idle_ms", options_.idle_ms},
            {"hold_ms", options_.hold_ms},
            {"max_clusters", gemm_.max_clusters()},
            {"sm_clock_mhz", measure_sm_clock_mhz(stream_.get())},
            {"ceilings", {{"read_gbps", read}}},
            {"lm_head", lt_ ? lm_head(read) : nlohmann::json()},
            {"cases", cases}};
  }

 private:
  /// `--products` is a list of whole names.
  [[nodiscard]] bool wanted(const std::string& name) const {
    return options_.products.empty() || ("," + options_.products + ",").find("," + name + ",") != std::string::npos;
  }

  double read_gbps() {
    DeviceBuffer<uint32_t> sink(4);
    const double us =
        timer_.median_us(4, [&](int, cudaStream_t s) { read_all(pool_.data(), kPoolBytes, sink.data(), s); });
    return static_cast<double>(kPoolBytes) / us / 1e3;
  }

  /// The LM head of 31B, BF16 through cuBLASLt with F32 logits: 2.8 GB of weights a call.
  nlohmann::json lm_head(double read) {
    constexpr int64_t kVocab = 262144;
    constexpr int64_t kHidden = 5376;
    DeviceBuffer<Bf16> weight(kVocab * kHidden);
    fill_normal_e4m3(reinterpret_cast<uint8_t*>(weight.data()), static_cast<int64_t>(weight.bytes()), 3, stream_.get());
    nlohmann::json cases;
    for (const int64_t m : {1, 16, 64, 128, 256}) {
      DeviceBuffer<Bf16> rows(m * kHidden);
      fill_normal_e4m3(reinterpret_cast<uint8_t*>(rows.data()), static_cast<int64_t>(rows.bytes()), 4, stream_.get());
      DeviceBuffer<float> logits(m * kVocab);
      const TensorView out(logits.data(), DType::kF32, {m, kVocab}, kGpu);
      const double us = timer_.median_us(4, [&](int, cudaStream_t s) {
        lt_->multiply({.rows = weight.data(), .n = kVocab, .k = kHidden}, rows.data(), m, out, s);
      });
      const double bytes = static_cast<double>(weight.bytes() + rows.bytes() + logits.bytes());
      cases.push_back({{"m", m}, {"us", us}, {"pct_read", 100 * bytes / us / 1e3 / read}});
    }
    return cases;
  }

  /// Weights that products go through in turn, and products of a graph.
  struct Rotation {
    int buffers = 1;
    int count = 1;
  };
  /// About 6 ms of weights, so that a graph's own start does not show; a few products where each takes long.
  static Rotation rotation(int64_t bytes, int64_t m) {
    const int buffers = static_cast<int>(std::min<int64_t>(kPoolBytes / bytes, 24));
    const int count = static_cast<int>(std::min(48.0, 6e3 / (static_cast<double>(bytes) / 3.5e6)));
    return {.buffers = buffers, .count = m > 512 ? 4 : std::max(buffers, count)};
  }

  [[nodiscard]] packed_fp8::PackedWeight weight_of(const Product& product, int buffer) const {
    return {.packed = pool_.data() + buffer * product.n * product.k,
            .n = product.n,
            .k = product.k,
            .scales = weight_scales_.data()};
  }

  /// Of a product that takes `us`; `read`: ceiling in GB/s.
  static nlohmann::json rates(const char* name, const GemmPlan& plan, const GemmShape& shape, double us, double read) {
    const auto bytes = static_cast<double>(shape.n * shape.k);
    return {{"name", name},
            {"m", shape.m},
            {"n", shape.n},
            {"k", shape.k},
            {"plan", to_string(plan)},
            {"us", us},
            {"weight_gbps", bytes / us / 1e3},
            {"pct_read", 100.0 * bytes / us / 1e3 / read},
            {"tflops", 2.0 * static_cast<double>(shape.m) * bytes / us / 1e6}};
  }

  nlohmann::json measure_geglu(int64_t m, double read) {
    const Product& product = kProducts.front();
    const int64_t bytes = product.n * product.k;
    const int64_t inner = product.n / 2;
    const auto [buffers, count] = rotation(bytes, m);
    const GemmShape shape{.m = m, .n = product.n, .k = product.k};
    const GemmPlan plan = gemm_.plan(shape, Scaling::kOuter, packed_fp8::Output::kGeglu);
    const packed_fp8::PackedTokens tokens{.packed = tokens_.data(), .m = m, .scales = token_scales_.data()};
    const GemmInput activations{
        .packed = activations_.data(), .scales = activation_scales_.data(), .kind = InputKind::kPerToken};
    const TensorView out(out_.data(), DType::kBF16, {m, product.n}, kGpu);
    const TensorView gated(out_.data(), DType::kBF16, {m, inner}, kGpu);
    const auto fused = [&, buffers = buffers](int i, cudaStream_t s) {
      gemm_.run_geglu(plan, weight_of(product, i % buffers), tokens, gated, workspace_, s);
    };
    const auto quantize = [&](cudaStream_t s) {
      device_ops::quantize({.rows = out_.data(), .num_tokens = m, .width = inner, .out = activations}, s);
    };
    const auto geglu = [&](cudaStream_t s) {
      device_ops::geglu_quantize(
          {.gate_up = out_.data(), .num_tokens = m, .intermediate_size = inner, .out = activations}, s);
    };
    const double us = timer_.median_us(count, fused);
    nlohmann::json front;
    front["gate_in_product"] = timer_.median_us(count, [&](int i, cudaStream_t s) {
      fused(i, s);
      quantize(s);
    });
    front["apart"] = timer_.median_us(count, [&, buffers = buffers](int i, cudaStream_t s) {
      gemm_.run(weight_of(product, i % buffers), tokens, out, workspace_, s);
      geglu(s);
    });
    const auto yardstick =
        lt_ ? lt_->yardstick({.m = m, .n = product.n, .k = product.k}, token_scales_.data(), weight_scales_.data())
            : nullptr;
    if (yardstick) {
      front["cublaslt_row_wise"] = timer_.median_us(count, [&, buffers = buffers](int i, cudaStream_t s) {
        yardstick->run(pool_.data() + i % buffers * bytes, tokens_.data(), out_.data(), s);
        geglu(s);
      });
    }
    nlohmann::json result = rates("gate_up_geglu", plan, shape, us, read);
    result["mlp_front_us"] = front;
    std::printf("%s\n", result.dump().c_str());
    std::fflush(stdout);
    return result;
  }

  nlohmann::json measure(const Product& product, int64_t m, double read) {
    const int64_t bytes = product.n * product.k;
    const auto [buffers, count] = rotation(bytes, m);
    const GemmShape shape{.m = m, .n = product.n, .k = product.k};
    const GemmPlan plan = gemm_.plan(shape, Scaling::kOuter);
    const packed_fp8::PackedTokens tokens{.packed = tokens_.data(), .m = m, .scales = token_scales_.data()};
    const TensorView out(out_.data(), DType::kBF16, {m, product.n}, kGpu);
    const auto weight = [&, buffers = buffers](int i) { return weight_of(product, i % buffers); };
    const auto planned_us = [&](const GemmPlan& p) {
      return timer_.median_us(count,
                              [&](int i, cudaStream_t s) { gemm_.run(p, weight(i), tokens, out, workspace_, s); });
    };
    gemm_.run(plan, weight(0), tokens, out, workspace_, stream_.get());
    const double error = relative_l2(shape);
    const double us = planned_us(plan);
    nlohmann::json result = rates(product.name, plan, shape, us, read);
    result["rel_l2"] = error;
    if (lt_) result["cublaslt_us"] = yardsticks(shape, count, buffers);
    if (options_.all_plans) {
      for (const GemmPlan& other : packed_fp8::possible_plans(shape, Scaling::kOuter, gemm_.max_clusters())) {
        result["plans"].push_back({{"plan", to_string(other)}, {"us", planned_us(other)}, {"clocks", other.clocks}});
      }
    }
    std::printf("%s\n", result.dump().c_str());
    std::fflush(stdout);
    return result;
  }

  nlohmann::json yardsticks(const GemmShape& shape, int count, int buffers) {
    struct Kind {
      const char* name;
      Fp8ScaleKind scales;
      bool fast;
    };
    nlohmann::json result;
    for (const Kind& kind :
         {Kind{"row_wise", Fp8ScaleKind::kRowWise, false}, Kind{"row_wise_fast", Fp8ScaleKind::kRowWise, true},
          Kind{"per_tensor_fast", Fp8ScaleKind::kPerTensor, true}}) {
      const auto yardstick = lt_->yardstick(
          {.m = shape.m, .n = shape.n, .k = shape.k, .scales = kind.scales, .fast_accumulation = kind.fast},
          token_scales_.data(), weight_scales_.data());
      if (!yardstick) continue;
      result[kind.name] = timer_.median_us(count, [&](int i, cudaStream_t s) {
        yardstick->run(pool_.data() + i % buffers * shape.n * shape.k, tokens_.data(), out_.data(), s);
      });
    }
    return result;
  }

  double relative_l2(const GemmShape& shape) {
    const int64_t rows = std::min<int64_t>(shape.n, 128);
    const int64_t tokens = std::min<int64_t>(shape.m, 8);
    std::vector<uint8_t> w(static_cast<size_t>(packed_fp8::packed_bytes(rows, shape.k)));  // the first blocks
    std::vector<uint8_t> x(w.size());
    std::vector<Bf16> y(static_cast<size_t>(tokens * shape.n));
    const auto fetch = [](auto& to, const void* from) {
      check_cuda(cudaMemcpy(to.data(), from, to.size() * sizeof(to[0]), cudaMemcpyDeviceToHost), "cudaMemcpy");
    };
    check_cuda(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
    fetch(w, pool_.data());
    fetch(x, tokens_.data());
    fetch(y, out_.data());
    double error = 0.0;
    double square = 0.0;
    for (int64_t token = 0; token < tokens; ++token) {
      for (int64_t row = 0; row < rows; ++row) {
        double sum = 0.0;
        for (int64_t c = 0; c < shape.k; ++c) {
          const auto value = [&](const std::vector<uint8_t>& codes, int64_t at) {
            return static_cast<double>(
                e4m3_decode(codes[static_cast<size_t>(packed_fp8::packed_offset(at, c, shape.k))]));
          };
          sum += value(w, row) * value(x, token);
        }
        sum *= static_cast<double>(host_weight_scales_[static_cast<size_t>(row)]) *
               static_cast<double>(host_token_scales_[static_cast<size_t>(token)]);
        const double got = static_cast<double>(to_float(y[static_cast<size_t>(token * shape.n + row)]));
        error += (got - sum) * (got - sum);
        square += sum * sum;
      }
    }
    return std::sqrt(error / square);
  }

  Options options_;
  DeviceInfo device_ = query_device(0);
  packed_fp8::PackedGemm gemm_{device_};
  packed_fp8::Workspace workspace_;
  std::unique_ptr<CublasLt> lt_ = options_.yardsticks && CublasLt::available() ? std::make_unique<CublasLt>() : nullptr;
  CudaStream stream_ = make_stream();
  GraphTimer timer_{stream_.get(), options_.idle_ms, options_.hold_ms};
  int64_t most_tokens_;
  DeviceBuffer<uint8_t> pool_, tokens_, activations_;
  DeviceBuffer<Bf16> out_;
  DeviceBuffer<float> token_scales_, activation_scales_, weight_scales_;
  std::vector<float> host_token_scales_, host_weight_scales_;
};

}  // namespace
}  // namespace quaver::bench

int main(int argc, char** argv) {
  using quaver::bench::Options;
  Options defaults;
  defaults.out = "gemm.json";
  const auto take = [](Options& options, const std::string& option, const std::string& value) {
    if (option == "--products") {
      options.products = value;
    } else if (option == "--yardsticks") {
      options.yardsticks = value != "no";
    } else if (option == "--plans") {
      options.all_plans = value == "all";
    } else if (option == "--idle-ms") {
      options.idle_ms = quaver::bench::integer_argument(option, value, 0);
    } else if (option == "--hold-ms") {
      options.hold_ms = quaver::bench::integer_argument(option, value, 0);
    } else if (option == "--tokens") {
      options.tokens = quaver::bench::integer_arguments(option, value, 1);
    } else {
      return false;
    }
    return true;
  };
  return quaver::bench::write_report("bench_gemm", argc, argv, defaults, take,
                                     [](const Options& options) { return quaver::bench::Bench(options).run(); });
}
