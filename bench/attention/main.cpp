// bench_attention: times the GPU attention kernels and writes one JSON file.
//
//   bench_attention --out decode.json [--only NAME] [--commit HASH] [--driver VERSION]
//
// Every time is the median of 21 launches after 3 to warm up, L2 flushed by reading 256 MB before each; the read
// ceiling comes from the same run. graph_* cases give the time of one layer inside a CUDA graph of 40 layers with their
// own pages.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "attention/decode_case.h"

namespace quaver::bench {
namespace {

constexpr int kRepetitions = 21;
constexpr int64_t kArenaBytes = int64_t{9200} << 20;
constexpr int64_t kFlushBytes = int64_t{256} << 20;

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
  };
  suite[0].window = 1024;
  for (DecodeSpec& spec : suite) {
    if (spec.name.ends_with("rows32")) spec.query_len = 32 / (spec.num_q_heads / spec.num_kv_heads);
    if (spec.name.ends_with("single")) spec.precision = Precision::kSingle;
    if (spec.name.starts_with("graph_")) spec.layers = spec.kv_lens.size() == 1 ? 40 : 8;
  }
  return suite;
}

double read_ceiling_gbps(const Arena& arena, cudaStream_t stream) {
  const CudaEvent begin = make_event();
  const CudaEvent end = make_event();
  const int64_t bytes = int64_t{4} << 30;
  std::vector<float> times;
  for (int i = 0; i < kRepetitions; ++i) {
    check_cuda(cudaEventRecord(begin.get(), stream), "cudaEventRecord");
    read_all(arena.pages.data(), bytes, arena.sink.data(), stream);
    check_cuda(cudaEventRecord(end.get(), stream), "cudaEventRecord");
    check_cuda(cudaEventSynchronize(end.get()), "cudaEventSynchronize");
    float ms = 0.0F;
    check_cuda(cudaEventElapsedTime(&ms, begin.get(), end.get()), "cudaEventElapsedTime");
    times.push_back(ms);
  }
  std::nth_element(times.begin(), times.begin() + kRepetitions / 2, times.end());
  return static_cast<double>(bytes) / static_cast<double>(times[kRepetitions / 2]) / 1e6;
}

void run(const std::string& out_path, const std::string& only, const std::string& commit, const std::string& driver) {
  const DeviceInfo device = query_device(0);
  const CudaStream stream = make_stream();
  const Arena arena{.pages = DeviceBuffer<uint8_t>(kArenaBytes),
                    .flush = DeviceBuffer<uint8_t>(kFlushBytes),
                    .sink = DeviceBuffer<uint32_t>(4)};
  fill_normal_e4m3(arena.pages.data(), arena.pages.size(), 1, stream.get());
  const double ceiling = read_ceiling_gbps(arena, stream.get());
  nlohmann::json report = {{"commit", commit},
                           {"gpu", device.name},
                           {"driver", driver},
                           {"sm_clock_mhz", measure_sm_clock_mhz(stream.get())},
                           {"ceilings", {{"read_gbps", ceiling}}},
                           {"cases", nlohmann::json::array()}};
  std::printf("%-28s %10s %10s %8s %10s   (read ceiling %.0f GB/s)\n", "case", "us", "KV GB/s", "%", "rel L2", ceiling);
  for (const DecodeSpec& spec : decode_suite()) {
    if (!only.empty() && spec.name.find(only) == std::string::npos) continue;
    DecodeCase decode(spec, arena, device, stream.get());
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // let the power limit forget the case before
    const double us = decode.time_us(kRepetitions);
    const double gbps = decode.kv_bytes() / us / 1e3;
    const double error = decode.relative_l2();
    report["cases"].push_back({{"name", spec.name},
                               {"us", us},
                               {"kv_gbps", gbps},
                               {"pct_ceiling", 100.0 * gbps / ceiling},
                               {"rel_l2", error}});
    std::printf("%-28s %10.2f %10.0f %8.1f %10.2e\n", spec.name.c_str(), us, gbps, 100.0 * gbps / ceiling, error);
    std::fflush(stdout);
  }
  std::ofstream(out_path) << report.dump(2) << "\n";
}

}  // namespace
}  // namespace quaver::bench

int main(int argc, char** argv) {
  std::string out = "decode.json";
  std::string only;
  std::string commit = "unknown";
  std::string driver = "unknown";
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--out") out = argv[i + 1];
    if (option == "--only") only = argv[i + 1];
    if (option == "--commit") commit = argv[i + 1];
    if (option == "--driver") driver = argv[i + 1];
  }
  try {
    quaver::bench::run(out, only, commit, driver);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_attention: %s\n", error.what());
    return 1;
  }
  return 0;
}
