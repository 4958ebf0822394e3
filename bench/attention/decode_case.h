// One decode case of the benchmark: its pages, queries and tables in device memory, its time and its error.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attention/device_attention.h"
#include "attention/timer.h"
#include "core/bf16.h"

namespace quaver::bench {

struct DecodeSpec {
  std::string name;
  int head_dim = 0;
  int num_kv_heads = 0;
  std::vector<int32_t> kv_lens;
  int window = 0;
  int query_len = 1;
  int layers = 1;  ///< > 1: a CUDA graph of that many layers, each with its own pages; the time is that of one layer
  int num_q_heads = 32;
  Precision precision = Precision::kAuto;  ///< `split` in the decode kernel
  KvDtype kv_dtype = KvDtype::kE4M3;
  int page_size = 64;
};

class DecodeCase {
 public:
  /// `pool`: N(0, 1) values in the dtype of the cache. Throws Error(kInvalidArgument) when the pages of all layers do
  /// not fit it.
  DecodeCase(const DecodeSpec& spec, const DeviceBuffer<uint8_t>& pool, const DeviceInfo& device, cudaStream_t stream);

  /// Median microseconds of one layer.
  [[nodiscard]] double time_us(Timer& timer);
  /// Mean microseconds of one layer in the second half of `seconds` back to back.
  [[nodiscard]] double held_us(int seconds);
  /// K and V bytes that one layer attends to.
  [[nodiscard]] double kv_bytes() const;
  /// Relative L2 error of some rows of layer 0 against float64 on the same codes.
  [[nodiscard]] double relative_l2();

 private:
  void run_layer(int layer);
  [[nodiscard]] CudaGraphExec graph_of_layers();
  [[nodiscard]] std::vector<float> natural(const std::vector<uint8_t>& page_bytes, int sequence, int head, bool values);

  DecodeSpec spec_;
  const DeviceBuffer<uint8_t>& pool_;
  cudaStream_t stream_;
  AttentionProblem problem_{};
  std::unique_ptr<DeviceAttention> attention_;
  int64_t max_pages_ = 0;
  int64_t layer_pages_ = 0;
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
