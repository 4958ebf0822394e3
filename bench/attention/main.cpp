// bench_attention: times the GPU attention kernels and writes one JSON file.
//
//   bench_attention [--suite decode|prefill] --out decode.json [--only NAME] [--hold SECONDS] [--commit HASH]
//                   [--driver VERSION]
//
// Every time is the median of 21 launches after 3 to warm up, L2 flushed by reading 256 MB before each; the ceilings
// come from the same run. graph_* cases give the time of one layer inside a CUDA graph of 40 or 8 layers with their own
// pages, general_* those of the general kernel; append_case.h says what append_* are.
// --hold runs each decode case back to back for that long instead, which is what the power limit slows down: the time
// is the mean of the second half. Cases of the suite prefill begin after one idle second: the power limit remembers.
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "arguments.h"
#include "attention/append_case.h"
#include "attention/decode_case.h"
#include "attention/prefill_case.h"

namespace quaver::bench {
namespace {

constexpr int64_t kPoolBytes = int64_t{9200} << 20;

std::vector<int32_t> mixed_lengths() {
  std::mt19937 random(11);
  std::vector<int32_t> lengths(64);
  for (int32_t& length : lengths) length = 64 + static_cast<int32_t>(random() % (16384 - 64 + 1));
  lengths[0] = 16384;
  lengths[1] = 64;
  return lengths;
}

std::vector<int32_t> equal_lengths(size_t batch, int32_t length) {
  return std::vector<int32_t>(batch, length);
}

DecodeSpec make(std::string name, int head_dim, int kv_heads, std::vector<int32_t> lengths) {
  DecodeSpec spec;
  spec.name = std::move(name);
  spec.head_dim = head_dim;
  spec.num_kv_heads = kv_heads;
  spec.kv_lens = std::move(lengths);
  return spec;
}

std::vector<DecodeSpec> decode_suite() {
  std::vector<DecodeSpec> suite = {
      make("d256_b128_kv8704_w1024", 256, 16, equal_lengths(128, 8704)),
      make("d256_b64_kv8192", 256, 16, equal_lengths(64, 8192)),
      make("d256_b64_kvmix64-16384", 256, 16, mixed_lengths()),
      make("d256_b1_kv131072", 256, 16, {131072}),
      make("d128_b64_kv8192", 128, 8, equal_lengths(64, 8192)),
      make("d128_b16_kv8192", 128, 8, equal_lengths(16, 8192)),
      make("d128_b1_kv131072", 128, 8, {131072}),
      make("d64_b128_kv16384", 64, 8, equal_lengths(128, 16384)),
      make("d512_b128_kv8704", 512, 4, equal_lengths(128, 8704)),
      make("d512_b1_kv131072", 512, 4, {131072}),
      make("d96_b64_kv8192", 96, 8, equal_lengths(64, 8192)),
      make("d192_b64_kv8192", 192, 8, equal_lengths(64, 8192)),
      make("d256_b64_kv8192_rows32", 256, 16, equal_lengths(64, 8192)),
      make("d128_b64_kv8192_rows32", 128, 8, equal_lengths(64, 8192)),
      make("d256_b64_kv8192_single", 256, 16, equal_lengths(64, 8192)),
      make("graph_d256_b1_kv1024", 256, 16, {1024}),
      make("graph_d128_b1_kv1024", 128, 8, {1024}),
      make("graph_d512_b1_kv1024", 512, 4, {1024}),
      make("graph_d256_b128_kv1024", 256, 16, equal_lengths(128, 1024)),
      make("graph_d128_b16_kv8192", 128, 8, equal_lengths(16, 8192)),
      make("general_d80_b16_kv8192", 80, 8, equal_lengths(16, 8192)),
      make("general_d256_b16_kv2048_bf16", 256, 16, equal_lengths(16, 2048)),
  };
  suite[0].window = 1024;
  for (DecodeSpec& spec : suite) {
    if (spec.name.ends_with("rows32")) spec.query_len = 32 / (spec.num_q_heads / spec.num_kv_heads);
    if (spec.name.ends_with("single")) spec.precision = Precision::kSingle;
    if (spec.name.ends_with("bf16")) spec.kv_dtype = KvDtype::kBF16;
    if (spec.name.starts_with("graph_")) spec.layers = spec.kv_lens.size() == 1 ? 40 : 8;
  }
  return suite;
}

nlohmann::json measure(const DecodeSpec& spec, const DeviceBuffer<uint8_t>& codes, double read_ceiling,
                       const DeviceInfo& device, int hold_s, Timer& timer) {
  DeviceBuffer<uint8_t> bf16;
  if (spec.kv_dtype == KvDtype::kBF16) {
    bf16 = DeviceBuffer<uint8_t>(int64_t{2} << 30);
    fill_normal_bf16(reinterpret_cast<__nv_bfloat16*>(bf16.data()), bf16.size() / 2, 2, timer.stream());
  }
  DecodeCase decode(spec, spec.kv_dtype == KvDtype::kBF16 ? bf16 : codes, device, timer.stream());
  const double us = hold_s > 0 ? decode.held_us(hold_s) : decode.time_us(timer);
  const double gbps = decode.kv_bytes() / us / 1e3;
  return {{"name", spec.name},
          {"us", us},
          {"kv_gbps", gbps},
          {"pct_ceiling", 100.0 * gbps / read_ceiling},
          {"rel_l2", decode.relative_l2()}};
}

struct Options : RunOptions {
  std::string suite = "decode";
  std::string only;
  int hold_s = 0;
};

nlohmann::json run_decode(const Options& options) {
  const DeviceInfo device = query_device(0);
  const CudaStream stream = make_stream();
  Timer timer(stream.get());
  const DeviceBuffer<uint8_t> pool(kPoolBytes);  // E4M3 codes of N(0, 1) values
  fill_normal_e4m3(pool.data(), pool.size(), 1, stream.get());
  const double read_ceiling = timer.read_gbps(pool, int64_t{4} << 30);
  const double copy_ceiling = timer.copy_gbps(pool, int64_t{2} << 30);
  nlohmann::json report = {{"commit", options.commit},
                           {"gpu", device.name},
                           {"driver", options.driver},
                           {"sm_clock_mhz", measure_sm_clock_mhz(stream.get())},
                           {"ceilings", {{"read_gbps", read_ceiling}, {"copy_gbps", copy_ceiling}}},
                           {"cases", nlohmann::json::array()}};
  std::printf("%-32s %10s %10s %8s   (read %.0f, copy %.0f GB/s)\n", "case", "us", "KV GB/s", "%", read_ceiling,
              copy_ceiling);
  const auto add = [&](const std::string& name, auto&& measured) {
    if (name.find(options.only) == std::string::npos) return;
    if (options.hold_s > 0 && name.starts_with("append_")) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // let the power limit forget the case before
    nlohmann::json result = measured();
    std::printf("%-32s %10.2f %10.0f %8.1f", name.c_str(), result["us"].get<double>(), result["kv_gbps"].get<double>(),
                result["pct_ceiling"].get<double>());
    for (const char* more : {"rel_l2", "wrong_bytes", "added_us"}) {
      if (result.contains(more)) std::printf("   %s %.3g", more, result[more].get<double>());
    }
    std::printf("\n");
    std::fflush(stdout);
    report["cases"].push_back(std::move(result));
  };
  for (const DecodeSpec& spec : decode_suite()) {
    add(spec.name, [&] { return measure(spec, pool, read_ceiling, device, options.hold_s, timer); });
  }
  for (const int64_t tokens : {8192, 2048}) {
    add("append_d256_t" + std::to_string(tokens), [&] { return append_prompt(tokens, copy_ceiling, timer); });
  }
  for (const auto& [batch, length] : {std::pair{128, 1024}, std::pair{32, 1024}, std::pair{8, 512}}) {
    add("append_step_d256_b" + std::to_string(batch) + "_kv" + std::to_string(length),
        [&] { return append_step(batch, length, pool, read_ceiling, timer); });
  }
  return report;
}

nlohmann::json run_prefill(const Options& options) {
  const DeviceInfo device = query_device(0);
  const CudaStream stream = make_stream();
  Timer timer(stream.get());
  const DeviceBuffer<uint8_t> pages(int64_t{1200} << 20);
  fill_normal_e4m3(pages.data(), pages.size(), 1, stream.get());
  nlohmann::json report = {{"commit", options.commit},
                           {"gpu", device.name},
                           {"driver", options.driver},
                           {"sm_clock_mhz", measure_sm_clock_mhz(stream.get())},
                           {"ceilings", {{"read_gbps", timer.read_gbps(pages, int64_t{1} << 30)}}},
                           {"cases", nlohmann::json::array()}};
  const double read_ceiling = report["ceilings"]["read_gbps"].get<double>();
  std::printf("%-36s %10s %10s %10s\n", "case", "us", "TFLOP/s", "rel L2");
  for (const PrefillSpec& spec : prefill_suite()) {
    if (!options.only.empty() && spec.name.find(options.only) == std::string::npos) continue;
    PrefillCase prefill(spec, pages, device, stream.get());
    std::this_thread::sleep_for(std::chrono::seconds(1));  // let the power limit forget the case before
    const double us = prefill.time_us(timer);
    const double tflops = prefill.flops() / us / 1e6;
    const double error = prefill.relative_l2();
    report["cases"].push_back({{"name", spec.name}, {"us", us}, {"tflops", tflops}, {"rel_l2", error}});
    std::printf("%-36s %10.1f %10.0f %10.2e", spec.name.c_str(), us, tflops, error);
    if (spec.read_bound) {
      const double gbps = prefill.kv_bytes() / us / 1e3;
      const double percent = 100.0 * gbps / read_ceiling;
      report["cases"].back().update({{"kv_gbps", gbps}, {"pct_ceiling", percent}});
      std::printf("   %.0f GB/s, %.1f %%", gbps, percent);
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  return report;
}

nlohmann::json run(const Options& options) {
  check(options.suite == "decode" || options.suite == "prefill", "--suite ", options.suite,
        ": expected decode or prefill");
  return options.suite == "decode" ? run_decode(options) : run_prefill(options);
}

}  // namespace
}  // namespace quaver::bench

int main(int argc, char** argv) {
  using quaver::bench::Options;
  Options defaults;
  defaults.out = "decode.json";
  const auto take = [](Options& options, const std::string& option, const std::string& value) {
    if (option == "--suite") {
      options.suite = value;
    } else if (option == "--only") {
      options.only = value;
    } else if (option == "--hold") {
      options.hold_s = quaver::bench::integer_argument(option, value, 1);
    } else {
      return false;
    }
    return true;
  };
  return quaver::bench::write_report("bench_attention", argc, argv, defaults, take, quaver::bench::run);
}
