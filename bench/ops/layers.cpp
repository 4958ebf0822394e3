// bench_layers: the fused ops between the products of Gemma 4 31B, as one JSON file.
//
//   bench_layers --out layers.json [--commit HASH] [--driver VERSION] [--tokens 128,8192] [--hold-ms 500]
//
// bench_ops measures an op beside its own kind on a cool GPU. In a step the products pull the clock down to 1.45 - 1.6
// GHz and leave dirty lines in L2. Here six layers, five sliding and a full one, run as they do in a step, but the gate
// is an op and another product stands in for attention: as a CUDA graph for `hold-ms` and then 20 times for the median.
// The ops on their own: with an event in front of each, as StepProfile has them, which hides no launch. Two builds with
// the same checksum gave the same bits in the first run.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "arguments.h"
#include "attention/device_data.h"
#include "core/device_info.h"
#include "gemm/packed_fp8/launch.h"
#include "kv_cache/page_format.h"
#include "ops/cuda/device_ops.h"

namespace quaver::bench {
namespace {

using packed_fp8::PackedGemm;

constexpr int64_t kHidden = 5376;
constexpr int64_t kInner = 21504;
constexpr int kQHeads = 32;
constexpr int kLayers = 6;
constexpr int64_t kWeightBytes = int64_t{3} << 30;  // the products of six layers go through it
constexpr size_t kSummedBytes = 16 << 20;           // of each buffer, by a checksum
constexpr Device kGpu{.kind = Device::Kind::kCuda, .index = 0};

struct LayerKind {
  KvLayout layout;
  int rotary_pairs;
  bool k_eq_v;

  [[nodiscard]] int64_t q_width() const { return int64_t{kQHeads} * layout.head_dim_k; }
  [[nodiscard]] int64_t qkv_width() const {
    return int64_t{kQHeads + (k_eq_v ? 1 : 2) * layout.num_kv_heads} * layout.head_dim_k;
  }
};
constexpr LayerKind kSliding{{.num_kv_heads = 16, .head_dim_k = 256, .head_dim_v = 256}, 128, false};
constexpr LayerKind kFull{{.num_kv_heads = 4, .head_dim_k = 512, .head_dim_v = 512}, 64, true};

struct Options : RunOptions {
  std::vector<int64_t> tokens{128, 8192};
  int hold_ms = 500;
};

template <class T>
DeviceBuffer<T> filled(int64_t count, T value) {
  const std::vector<T> values(static_cast<size_t>(count), value);
  DeviceBuffer<T> buffer(count);
  check_cuda(cudaMemcpy(buffer.data(), values.data(), buffer.bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
  return buffer;
}

/// Buffers of a step of `tokens`: one prompt from 1,024 on, else decodes of sequences whose pages are far apart.
class Layers {
 public:
  /// What to do before an op or product of this name is launched.
  using Before = std::function<void(const char* name)>;

  Layers(int64_t tokens, cudaStream_t stream)
      : tokens_(tokens),
        pages_of_layer_(tokens > 1024 ? tokens / 64 + 1 : tokens),
        hidden_(tokens * kHidden),
        projected_(tokens * kHidden),
        wide_(tokens * 2 * kInner),
        attended_(tokens * kFull.q_width()),
        packed_(packed_fp8::packed_bytes(tokens, kInner)),
        slots_(tokens),
        table_(filled(tokens * 2 * kSliding.rotary_pairs, 0.7F)),
        scales_(filled(tokens, 1.0F)),
        pages_(kLayers * pages_of_layer_ * page_bytes()) {
    fill_normal_e4m3(weights_.data(), weights_.size(), 1, stream);
    const auto normal = [&](const DeviceBuffer<Bf16>& rows) {
      fill_normal_bf16(reinterpret_cast<__nv_bfloat16*>(rows.data()), rows.size(), 2, stream);
    };
    normal(hidden_);
    normal(attended_);
    std::vector<int64_t> slots(static_cast<size_t>(tokens));
    for (int64_t t = 0; t < tokens; ++t) slots[static_cast<size_t>(t)] = tokens > 1024 ? t : t * 64 + 7 * t % 64;
    check_cuda(cudaMemcpy(slots_.data(), slots.data(), slots_.bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
    check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }

  /// Of what the ops have written.
  [[nodiscard]] uint64_t checksum(cudaStream_t stream) const {
    check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    uint64_t sum = 0;
    const auto add = [&](const auto& buffer) {
      std::vector<uint64_t> words(std::min(buffer.bytes(), kSummedBytes) / sizeof(uint64_t));
      check_cuda(cudaMemcpy(words.data(), buffer.data(), words.size() * sizeof(uint64_t), cudaMemcpyDeviceToHost),
                 "cudaMemcpy");
      for (const uint64_t word : words) sum = std::rotl(sum, 5) * 0x9E3779B97F4A7C15U + word;
    };
    add(hidden_);
    add(wide_);
    add(packed_);
    add(scales_);
    add(pages_);
    return sum;
  }

  void run(cudaStream_t stream, const Before& before) {
    weight_at_ = 0;
    for (int layer = 0; layer < kLayers; ++layer)
      run_layer(layer, layer + 1 == kLayers ? kFull : kSliding, stream, before);
  }

 private:
  [[nodiscard]] static int64_t page_bytes() { return page_format::page_bytes(kSliding.layout); }
  [[nodiscard]] GemmInput input() const {
    return {.packed = packed_.data(), .scales = scales_.data(), .scale_stride = 1, .kind = InputKind::kPerToken};
  }
  void product(int64_t n, int64_t k, Bf16* out, cudaStream_t stream) {
    if (weight_at_ + n * k > weights_.size()) weight_at_ = 0;
    gemm_.run({.packed = weights_.data() + weight_at_, .n = n, .k = k, .scales = weight_scales_.data()},
              {.packed = packed_.data(), .m = tokens_, .scales = scales_.data()},
              TensorView(out, DType::kBF16, {tokens_, n}, kGpu), workspace_, stream);
    weight_at_ += n * k;
  }
  void add_norm(int layer, cudaStream_t stream) {
    const float* const norms = norms_.data() + layer * 2 * kHidden;
    device_ops::add_norm_quantize({.projected = projected_.data(),
                                   .post_norm = norms,
                                   .hidden = hidden_.data(),
                                   .next_norm = norms + kHidden,
                                   .num_tokens = tokens_,
                                   .hidden_size = kHidden,
                                   .out = input()},
                                  stream);
  }
  void append(int layer, const LayerKind& kind, cudaStream_t stream) {
    uint8_t* const pages = pages_.data() + layer * pages_of_layer_ * page_bytes();
    device_ops::qkv_append({.qkv = wide_.data(),
                            .num_tokens = tokens_,
                            .num_q_heads = kQHeads,
                            .layout = kind.layout,
                            .k_eq_v = kind.k_eq_v,
                            .q_norm = norms_.data(),
                            .k_norm = norms_.data(),
                            .v_norm = true,
                            .rotary_pairs = kind.rotary_pairs,
                            .rope_table = table_.data(),
                            .slots = slots_.data(),
                            .k_scale = weight_scales_.data(),
                            .v_scale = weight_scales_.data(),
                            .pages = TensorView(pages, DType::kU8, {pages_of_layer_, page_bytes()}, kGpu)},
                           stream);
  }
  void run_layer(int layer, const LayerKind& kind, cudaStream_t stream, const Before& before) {
    before("qkv");
    product(kind.qkv_width(), kHidden, wide_.data(), stream);
    before(kind.k_eq_v ? "qkv_append_full" : "qkv_append_sliding");
    append(layer, kind, stream);
    before("instead of attention");
    product(kHidden, kHidden, projected_.data(), stream);
    before(kind.k_eq_v ? "quantize_full" : "quantize_sliding");
    device_ops::quantize({.rows = attended_.data(), .num_tokens = tokens_, .width = kind.q_width(), .out = input()},
                         stream);
    before("out");
    product(kHidden, kind.q_width(), projected_.data(), stream);
    before("add_norm");
    add_norm(2 * layer, stream);
    before("gate_up");
    product(2 * kInner, kHidden, wide_.data(), stream);
    before("geglu");
    device_ops::geglu_quantize(
        {.gate_up = wide_.data(), .num_tokens = tokens_, .intermediate_size = kInner, .out = input()}, stream);
    before("down");
    product(kHidden, kInner, projected_.data(), stream);
    before("add_norm");
    add_norm(2 * layer + 1, stream);
  }

  int64_t tokens_;
  int64_t pages_of_layer_;
  DeviceBuffer<Bf16> hidden_, projected_, wide_, attended_;
  DeviceBuffer<uint8_t> packed_;
  DeviceBuffer<int64_t> slots_;
  DeviceBuffer<float> table_, scales_;
  DeviceBuffer<uint8_t> pages_;
  DeviceBuffer<uint8_t> weights_{kWeightBytes};
  DeviceBuffer<float> weight_scales_ = filled(2 * kInner, 0.02F);
  DeviceBuffer<float> norms_ = filled(2 * (2 * kLayers) * kHidden, 1.03F);
  int64_t weight_at_ = 0;
  PackedGemm gemm_{query_device(0)};
  packed_fp8::Workspace workspace_;
};

double milliseconds(const CudaEvent& begin, const CudaEvent& end) {
  float ms = 0;
  check_cuda(cudaEventSynchronize(end.get()), "cudaEventSynchronize");
  check_cuda(cudaEventElapsedTime(&ms, begin.get(), end.get()), "cudaEventElapsedTime");
  return ms;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

constexpr int kRepetitions = 5;

/// Milliseconds of a layer in a graph, after `hold_ms` of the same.
double graph_ms(Layers& layers, int hold_ms, cudaStream_t stream) {
  const CudaGraphExec graph = capture_graph(stream, [&](cudaStream_t s) { layers.run(s, [](const char*) {}); });
  const auto timed = [&] {
    const CudaEvent begin = make_event();
    const CudaEvent end = make_event();
    check_cuda(cudaEventRecord(begin.get(), stream), "cudaEventRecord");
    check_cuda(cudaGraphLaunch(graph.get(), stream), "cudaGraphLaunch");
    check_cuda(cudaEventRecord(end.get(), stream), "cudaEventRecord");
    return milliseconds(begin, end);
  };
  for (double total = 0; total < hold_ms;) total += timed();
  std::vector<double> times;
  for (int i = 0; i < 4 * kRepetitions; ++i) times.push_back(timed());
  return median(times) / kLayers;
}

/// Microseconds of an op of each name, with events between them.
std::map<std::string, double> op_us(Layers& layers, cudaStream_t stream) {
  std::map<std::string, std::vector<double>> all;
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    std::vector<std::pair<std::string, CudaEvent>> marks;
    const auto mark = [&](const char* name) {
      marks.emplace_back(name, make_event());
      check_cuda(cudaEventRecord(marks.back().second.get(), stream), "cudaEventRecord");
    };
    layers.run(stream, [](const char*) {});  // busy until the host has queued the rest
    layers.run(stream, mark);
    mark("end");
    for (size_t i = 0; i + 1 < marks.size(); ++i) {
      all[marks[i].first].push_back(1e3 * milliseconds(marks[i].second, marks[i + 1].second));
    }
  }
  std::map<std::string, double> result;
  for (const auto& [name, times] : all) {
    result[name] = std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
  }
  return result;
}

nlohmann::json run(const Options& options) {
  const CudaStream stream = make_stream();
  nlohmann::json steps;
  for (const int64_t tokens : options.tokens) {
    Layers layers(tokens, stream.get());
    layers.run(stream.get(), [](const char*) {});
    const uint64_t checksum = layers.checksum(stream.get());
    const double layer_ms = graph_ms(layers, options.hold_ms, stream.get());
    steps.push_back(
        {{"tokens", tokens}, {"checksum", checksum}, {"layer_ms", layer_ms}, {"op_us", op_us(layers, stream.get())}});
    std::printf("%s\n", steps.back().dump().c_str());
    std::fflush(stdout);
  }
  return {{"commit", options.commit}, {"gpu", query_device(0).name}, {"driver", options.driver}, {"steps", steps}};
}

}  // namespace
}  // namespace quaver::bench

int main(int argc, char** argv) {
  using quaver::bench::Options;
  Options defaults;
  defaults.out = "layers.json";
  const auto take = [](Options& options, const std::string& option, const std::string& value) {
    if (option == "--tokens") {
      options.tokens = quaver::bench::integer_arguments(option, value, 1);
    } else if (option == "--hold-ms") {
      options.hold_ms = quaver::bench::integer_argument(option, value, 0);
    } else {
      return false;
    }
    return true;
  };
  return quaver::bench::write_report("bench_layers", argc, argv, defaults, take, quaver::bench::run);
}
