// One prefill case of the benchmark: its pages, queries and tables in device memory, its time and its error.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attention/device_attention.h"
#include "attention/timer.h"
#include "core/bf16.h"

namespace quaver::bench {

struct PrefillSpec {
  std::string name;
  int head_dim = 0;
  int num_kv_heads = 0;
  int batch = 1;
  int query_len = 0;
  int kv_len = 0;
  int window = 0;
  int num_q_heads = 32;
  int page_size = 64;
  Precision precision = Precision::kSingle;
  bool read_bound = false;  ///< few rows over a long context: its report has the bandwidth of K and V too
};

/// The cases of bench/results/<gpu>/prefill.json.
[[nodiscard]] std::vector<PrefillSpec> prefill_suite();

class PrefillCase {
 public:
  /// `pages`: E4M3 codes of N(0, 1) values. Throws Error(kInvalidArgument) when the case needs more of them.
  PrefillCase(const PrefillSpec& spec, const DeviceBuffer<uint8_t>& pages, const DeviceInfo& device,
              cudaStream_t stream);

  /// Median microseconds.
  [[nodiscard]] double time_us(Timer& timer) {
    return timer.median_us([&] { attention_->run(args_, stream_); });
  }
  /// 4 * D floating-point operations a visible (query, key) pair and query head.
  [[nodiscard]] double flops() const;
  /// K and V of all sequences, read once.
  [[nodiscard]] double kv_bytes() const;
  /// Relative L2 error of some rows against float64 on the same codes and the BF16 Q.
  [[nodiscard]] double relative_l2();

 private:
  [[nodiscard]] std::vector<float> read_keys(int head, int64_t tokens, bool values);

  PrefillSpec spec_;
  const DeviceBuffer<uint8_t>& pages_;
  cudaStream_t stream_;
  AttentionProblem problem_{};
  std::unique_ptr<DeviceAttention> attention_;
  std::vector<int32_t> table_;
  DeviceBuffer<__nv_bfloat16> q_;
  DeviceBuffer<__nv_bfloat16> out_;
  DeviceBuffer<float> lse_;
  DeviceBuffer<int32_t> block_table_;
  DeviceBuffer<int32_t> seq_lens_;
  DeviceBuffer<int32_t> query_start_;
  AttentionArgs args_{};
};

}  // namespace quaver::bench
