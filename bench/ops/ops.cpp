// bench_ops: the fused ops at the shapes of Gemma 4 31B, as one JSON file.
//
//   bench_ops --out ops.json [--commit HASH] [--driver VERSION] [--tokens 1,128,2048,8192] [--idle-ms 40]
//             [--kind token|block|static|bf16]
//
// Every figure is microseconds of one op in a CUDA graph of many of them, each launched beside its predecessor as in a
// step. From 1,024 tokens on the operands rotate over more than the L2 cache; below they stay in it, as in a step,
// where the kernel in front has just written them. bytes are what the op must read and write (README of src/ops/cuda),
// pct_copy is bytes a second over those of a device copy, read and written, in the same run.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "arguments.h"
#include "attention/graph_timer.h"
#include "attention/timer.h"
#include "core/device_info.h"
#include "gemm/packed_fp8/layout.h"
#include "kv_cache/page_format.h"
#include "ops/cuda/device_ops.h"
#include "ops/rope.h"

namespace quaver::bench {
namespace {

constexpr int64_t kHidden = 5376;
constexpr int64_t kInner = 21504;
constexpr int kQHeads = 32;
constexpr int64_t kVocab = 131072;  // half of the model's, 1.4 GB
constexpr int64_t kPoolBytes = kVocab * kHidden * 2;
constexpr int64_t kRotatedBytes = int64_t{256} << 20;  // five times L2
constexpr int64_t kLogitRows = 128;
constexpr Device kGpu{.kind = Device::Kind::kCuda, .index = 0};

struct LayerKind {
  const char* name;
  KvLayout layout;
  int rotary_pairs;
  double theta;
  bool k_eq_v;
  int layers;

  [[nodiscard]] int heads() const { return kQHeads + (k_eq_v ? 1 : 2) * layout.num_kv_heads; }
  [[nodiscard]] int64_t qkv_width() const { return int64_t{heads()} * layout.head_dim_k; }
  [[nodiscard]] int64_t q_width() const { return int64_t{kQHeads} * layout.head_dim_k; }
};
constexpr LayerKind kSliding{"sliding", {.num_kv_heads = 16, .head_dim_k = 256, .head_dim_v = 256}, 128, 1e4, false,
                             50};
constexpr LayerKind kFull{"full", {.num_kv_heads = 4, .head_dim_k = 512, .head_dim_v = 512}, 64, 1e6, true, 10};

struct Options : RunOptions {
  int idle_ms = 40;
  std::vector<int64_t> tokens{1, 128, 2048, 8192};
  InputKind kind = InputKind::kPerToken;
};

InputKind kind_of(const std::string& name) {
  if (name == "token") return InputKind::kPerToken;
  if (name == "block") return InputKind::kPerBlock;
  if (name == "static") return InputKind::kStatic;
  check(name == "bf16", "--kind ", name, ": expected token, block, static or bf16");
  return InputKind::kBf16;
}

template <class T>
DeviceBuffer<T> upload(const std::vector<T>& values) {
  DeviceBuffer<T> buffer(std::ssize(values));
  check_cuda(cudaMemcpy(buffer.data(), values.data(), buffer.bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
  return buffer;
}

/// Steps of more tokens are one prompt; the others are decodes, each token of a sequence of its own.
bool is_prompt(int64_t tokens) {
  return tokens > 1024;
}

int64_t pages_of(int64_t tokens, int page_size) {
  return is_prompt(tokens) ? tokens / page_size + 1 : tokens;
}

/// On shuffled pages.
std::vector<int64_t> slots_of(int64_t tokens, int page_size) {
  const bool prompt = is_prompt(tokens);
  std::vector<int64_t> pages(static_cast<size_t>(pages_of(tokens, page_size)));
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937(5));
  std::vector<int64_t> slots;
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t page = pages[static_cast<size_t>(prompt ? t / page_size : t)];
    slots.push_back(page * page_size + (prompt ? t : 7 * t) % page_size);
  }
  return slots;
}

std::vector<int32_t> positions_of(int64_t tokens) {
  std::vector<int32_t> positions(static_cast<size_t>(tokens));
  for (size_t t = 0; t < positions.size(); ++t) {
    positions[t] = static_cast<int32_t>(is_prompt(tokens) ? 2048 + t : 4096 + 61 * t);
  }
  return positions;
}

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        most_tokens_(std::ranges::max(options.tokens)),
        in_(kPoolBytes / 2),
        out_(kPoolBytes),
        ids_(upload(random_ids())),
        weights_(upload(std::vector<float>(kHidden, 1.03F))),
        scales_(packed_fp8::num_chunks(kInner) * scale_stride()) {
    check(most_tokens_ <= 8320, "tokens ", most_tokens_, ": expected at most 8320");
    fill_normal_bf16(reinterpret_cast<__nv_bfloat16*>(in_.data()), in_.size(), 1, stream_.get());
    check_cuda(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
  }

  nlohmann::json run() {
    Timer timer(stream_.get());
    const double read = timer.read_gbps(out_, int64_t{1} << 30);
    copy_gbps_ = timer.copy_gbps(out_, int64_t{600} << 20);
    nlohmann::json cases = nlohmann::json::array();
    nlohmann::json steps;
    for (const int64_t tokens : options_.tokens) {
      const nlohmann::json measured = all(tokens);
      double us = 0.0;
      for (const auto& item : measured) us += item["us"].get<double>() * item["times_a_step"].get<double>();
      steps.push_back({{"tokens", tokens}, {"ops_ms_a_step", us / 1e3}});
      cases.insert(cases.end(), measured.begin(), measured.end());
    }
    return {{"commit", options_.commit},
            {"gpu", device_.name},
            {"driver", options_.driver},
            {"idle_ms", options_.idle_ms},
            {"sm_clock_mhz", measure_sm_clock_mhz(stream_.get())},
            {"ceilings", {{"read_gbps", read}, {"copy_gbps", copy_gbps_}}},
            {"steps", steps},
            {"cases", cases}};
  }

 private:
  /// Bytes of one call, and how often a step makes it.
  struct Op {
    std::string name;
    int64_t tokens = 0;
    int64_t read = 0;
    int64_t written = 0;
    int times = 1;
  };
  /// Element of the input pool and byte of the output pool where call `i` of an op begins.
  using Launch = std::function<void(Bf16* in, uint8_t* out, int i, cudaStream_t stream)>;

  [[nodiscard]] int64_t scale_stride() const { return (most_tokens_ + 7) / 8 * 8; }
  [[nodiscard]] std::vector<int32_t> random_ids() const {
    std::mt19937 random(9);
    std::vector<int32_t> ids(static_cast<size_t>(4 * most_tokens_));
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % kVocab);
    return ids;
  }

  [[nodiscard]] GemmInput gemm_input(uint8_t* out) const {
    const int64_t stride = options_.kind == InputKind::kPerBlock ? scale_stride()
                           : options_.kind == InputKind::kStatic ? 0
                                                                 : 1;
    return {.packed = out,
            .scales = scales_.data(),
            .scale_stride = stride,
            .rows = reinterpret_cast<Bf16*>(out),
            .kind = options_.kind,
            .static_scale = 0.01F};
  }
  /// Bytes of a GEMM's input, scales included.
  [[nodiscard]] int64_t input_bytes(int64_t tokens, int64_t columns) const {
    if (options_.kind == InputKind::kBf16) return 2 * tokens * columns;
    const int64_t scales = options_.kind == InputKind::kPerBlock ? packed_fp8::num_chunks(columns)
                           : options_.kind == InputKind::kStatic ? 0
                                                                 : 1;
    return tokens * (columns + 4 * scales);
  }

  nlohmann::json measure(const Op& op, const Launch& launch) {
    const int64_t bytes = op.read + op.written;
    const int64_t in_step = (op.read + 255) / 256 * 128;  // elements
    const int64_t out_step =
        (op.written + 128 * kInner + 255) / 256 * 256;  // a packed matrix has whole blocks of 128 rows
    int64_t places = 1;
    if (op.tokens >= 1024) {
      places = std::min({kRotatedBytes / bytes + 1, in_.size() / in_step, out_.size() / out_step});
    }
    const int count = static_cast<int>(std::clamp(6e3 / (static_cast<double>(bytes) / 4e6 + 3.0), 6.0, 200.0));
    const double us = timer_.median_us(count, [&](int i, cudaStream_t stream) {
      launch(in_.data() + i % places * in_step, out_.data() + i % places * out_step, i, stream);
    });
    const double gbps = static_cast<double>(bytes) / us / 1e3;
    nlohmann::json result = {{"name", op.name},         {"tokens", op.tokens}, {"us", us},
                             {"bytes", bytes},          {"gbps", gbps},        {"pct_copy", 100.0 * gbps / copy_gbps_},
                             {"times_a_step", op.times}};
    std::printf("%s\n", result.dump().c_str());
    std::fflush(stdout);
    return result;
  }

  nlohmann::json all(int64_t tokens) {
    const int64_t hidden = 2 * tokens * kHidden;
    const float* const norm = weights_.data();
    nlohmann::json cases;
    cases.push_back(measure({"embed", tokens, hidden, hidden}, [&](Bf16*, uint8_t* out, int i, cudaStream_t stream) {
      device_ops::embed_tokens({.table = in_.data(),
                                .vocab_size = kVocab,
                                .token_ids = ids_.data() + i % 4 * most_tokens_,
                                .scale = 73.5F,
                                .num_tokens = tokens,
                                .hidden_size = kHidden,
                                .hidden = reinterpret_cast<Bf16*>(out)},
                               stream);
    }));
    cases.push_back(measure({"norm_quantize", tokens, hidden, input_bytes(tokens, kHidden)}, [&](Bf16* in, uint8_t* out,
                                                                                                 int,
                                                                                                 cudaStream_t stream) {
      device_ops::norm_quantize(
          {.hidden = in, .norm = norm, .num_tokens = tokens, .hidden_size = kHidden, .out = gemm_input(out)}, stream);
    }));
    for (const LayerKind& kind : {kSliding, kFull}) {
      cases.push_back(rope_table(kind, tokens));
      cases.push_back(qkv_append(kind, tokens));
      if (options_.kind != InputKind::kBf16) cases.push_back(quantize(kind, tokens));
    }
    cases.push_back(measure({"add_norm_quantize", tokens, 2 * hidden, hidden + input_bytes(tokens, kHidden), 120},
                            [&](Bf16* in, uint8_t* out, int, cudaStream_t stream) {
                              device_ops::add_norm_quantize({.projected = in,
                                                             .post_norm = norm,
                                                             .hidden = in + tokens * kHidden,
                                                             .layer_scalar = 0.5F,
                                                             .next_norm = norm,
                                                             .num_tokens = tokens,
                                                             .hidden_size = kHidden,
                                                             .out = gemm_input(out)},
                                                            stream);
                            }));
    // With scales by row gate_up's own kernel applies the gate.
    const bool gated = options_.kind == InputKind::kPerToken || options_.kind == InputKind::kStatic;
    if (gated) {
      cases.push_back(measure(
          {"quantize_mlp", tokens, 2 * tokens * kInner, input_bytes(tokens, kInner), 60},
          [&](Bf16* in, uint8_t* out, int, cudaStream_t stream) {
            device_ops::quantize({.rows = in, .num_tokens = tokens, .width = kInner, .out = gemm_input(out)}, stream);
          }));
    }
    cases.push_back(measure(
        {"geglu_quantize", tokens, 4 * tokens * kInner, input_bytes(tokens, kInner), gated ? 0 : 60},
        [&](Bf16* in, uint8_t* out, int, cudaStream_t stream) {
          device_ops::geglu_quantize(
              {.gate_up = in, .num_tokens = tokens, .intermediate_size = kInner, .out = gemm_input(out)}, stream);
        }));
    const int64_t rows = std::min(tokens, kLogitRows);
    cases.push_back(measure({"final_norm", tokens, 2 * rows * kHidden, 2 * rows * kHidden},
                            [&](Bf16*, uint8_t* out, int, cudaStream_t stream) {
                              device_ops::final_norm({.hidden = in_.data(),
                                                      .rows = ids_.data(),
                                                      .num_rows = rows,
                                                      .hidden_size = kHidden,
                                                      .norm = norm,
                                                      .out = reinterpret_cast<Bf16*>(out)},
                                                     stream);
                            }));
    return cases;
  }

  nlohmann::json rope_table(const LayerKind& kind, int64_t tokens) {
    const auto positions = upload(positions_of(tokens));
    const auto frequencies = upload(
        rope_frequencies({.head_dim = kind.layout.head_dim_k, .rotary_pairs = kind.rotary_pairs, .theta = kind.theta}));
    const int64_t written = 4 * tokens * device_ops::rope_table_width(kind.rotary_pairs);
    return measure({std::string("rope_table_") + kind.name, tokens, 4 * tokens, written},
                   [&](Bf16*, uint8_t* out, int, cudaStream_t stream) {
                     device_ops::rope_table({.positions = positions.data(),
                                             .frequencies = frequencies.data(),
                                             .rotary_pairs = kind.rotary_pairs,
                                             .num_tokens = tokens,
                                             .table = reinterpret_cast<float*>(out)},
                                            stream);
                   });
  }

  nlohmann::json qkv_append(const LayerKind& kind, int64_t tokens) {
    const int64_t width = device_ops::rope_table_width(kind.rotary_pairs);
    const auto slots = upload(slots_of(tokens, kind.layout.page_size));
    const auto scales = upload(std::vector<float>(static_cast<size_t>(kind.layout.num_kv_heads), 0.02F));
    const int64_t page_bytes = page_format::page_bytes(kind.layout);
    const int64_t num_pages = pages_of(tokens, kind.layout.page_size);
    const DeviceBuffer<float> table(tokens * width);  // zeros: the same work
    const DeviceBuffer<uint8_t> pages(num_pages * page_bytes);
    const int64_t read = 2 * tokens * kind.qkv_width() + 4 * tokens * width;
    const int64_t written = 2 * tokens * kind.q_width() + tokens * page_format::token_bytes(kind.layout);
    return measure({std::string("qkv_append_") + kind.name, tokens, read, written, kind.layers},
                   [&](Bf16* in, uint8_t*, int, cudaStream_t stream) {
                     device_ops::qkv_append(
                         {.qkv = in,
                          .num_tokens = tokens,
                          .num_q_heads = kQHeads,
                          .layout = kind.layout,
                          .k_eq_v = kind.k_eq_v,
                          .q_norm = weights_.data(),
                          .k_norm = weights_.data(),
                          .v_norm = true,
                          .rotary_pairs = kind.rotary_pairs,
                          .rope_table = table.data(),
                          .slots = slots.data(),
                          .k_scale = scales.data(),
                          .v_scale = scales.data(),
                          .pages = TensorView(pages.data(), DType::kU8, {num_pages, page_bytes}, kGpu)},
                         stream);
                   });
  }

  nlohmann::json quantize(const LayerKind& kind, int64_t tokens) {
    const int64_t width = kind.q_width();
    return measure(
        {std::string("quantize_") + kind.name, tokens, 2 * tokens * width, input_bytes(tokens, width), kind.layers},
        [&](Bf16* in, uint8_t* out, int, cudaStream_t stream) {
          device_ops::quantize({.rows = in, .num_tokens = tokens, .width = width, .out = gemm_input(out)}, stream);
        });
  }

  Options options_;
  DeviceInfo device_ = query_device(0);
  CudaStream stream_ = make_stream();
  GraphTimer timer_{stream_.get(), options_.idle_ms};
  int64_t most_tokens_;
  double copy_gbps_ = 0.0;
  DeviceBuffer<Bf16> in_;
  DeviceBuffer<uint8_t> out_;
  DeviceBuffer<int32_t> ids_;
  DeviceBuffer<float> weights_, scales_;
};

}  // namespace
}  // namespace quaver::bench

int main(int argc, char** argv) {
  using quaver::bench::Options;
  Options defaults;
  defaults.out = "ops.json";
  const auto take = [](Options& options, const std::string& option, const std::string& value) {
    if (option == "--kind") {
      options.kind = quaver::bench::kind_of(value);
    } else if (option == "--idle-ms") {
      options.idle_ms = quaver::bench::integer_argument(option, value, 0);
    } else if (option == "--tokens") {
      options.tokens = quaver::bench::integer_arguments(option, value, 1);
    } else {
      return false;
    }
    return true;
  };
  return quaver::bench::write_report("bench_ops", argc, argv, defaults, take,
                                     [](const Options& options) { return quaver::bench::Bench(options).run(); });
}
