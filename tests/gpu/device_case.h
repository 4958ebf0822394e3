// A testing::Case in device memory, and one run of a kernel over it.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <vector>

#include "attention/device_attention.h"
#include "testing/cases.h"

namespace quaver::testing {

/// Device copy of host memory.
template <class T>
[[nodiscard]] DeviceBuffer<T> to_device(const std::vector<T>& values) {
  DeviceBuffer<T> buffer(static_cast<int64_t>(values.size()));
  if (!values.empty()) {
    check_cuda(cudaMemcpy(buffer.data(), values.data(), buffer.bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  return buffer;
}

template <class T>
[[nodiscard]] std::vector<T> to_host(const DeviceBuffer<T>& buffer) {
  std::vector<T> values(static_cast<size_t>(buffer.size()));
  if (!values.empty()) {
    check_cuda(cudaMemcpy(values.data(), buffer.data(), buffer.bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  }
  return values;
}

/// The plan of the decode kernel for a problem, as the policy makes it.
[[nodiscard]] AttentionPlan decode_plan(const AttentionProblem& problem, Precision precision,
                                        bool batch_invariant = false);

/// The same of the prefill kernel, which `problem` then asks for by name: for all rows, however few.
[[nodiscard]] AttentionPlan prefill_plan(AttentionProblem& problem, Precision precision);

/// One kernel of the prefill family.
struct PrefillMode {
  int head_dim = 0;
  Precision precision = Precision::kSingle;
};

/// `single` and `split` at every head dim of the FP8 kernels.
[[nodiscard]] std::vector<PrefillMode> prefill_modes();
void PrintTo(const PrefillMode& mode, std::ostream* out);

/// Out and LSE of a run, as written; NaN where nothing was.
struct Outputs {
  std::vector<Bf16> bf16;
  std::vector<float> f32;
  std::vector<float> lse;
  [[nodiscard]] std::vector<float> values() const;
  friend bool operator==(const Outputs& a, const Outputs& b);  // bitwise
};

/// The tensors of a case on the GPU. Outputs are poisoned before every run.
class DeviceCase {
 public:
  explicit DeviceCase(const Case& host);

  /// schedule() and run() on `stream`, then waits for it.
  Outputs run(DeviceAttention& attention, cudaStream_t stream = nullptr);
  /// The same with a kernel object made for the case.
  Outputs run(const AttentionPlan& plan);

  /// schedule() and `runs` times run() as a graph.
  [[nodiscard]] CudaGraphExec capture(DeviceAttention& attention, cudaStream_t stream, int runs);
  /// Poisons the outputs, launches the graph and waits for it.
  Outputs replay(const CudaGraphExec& graph, cudaStream_t stream);

  void poison();
  [[nodiscard]] Outputs outputs() const;
  [[nodiscard]] DeviceAttentionLimits limits() const { return limits_; }

  AttentionProblem problem{};
  AttentionArgs args{};  ///< device views

 private:
  const void* keep(const ConstTensorView& host);
  DeviceAttentionLimits limits_{};
  std::vector<DeviceBuffer<uint8_t>> buffers_;
  DeviceBuffer<uint8_t> out_;
  DeviceBuffer<float> lse_;
};

/// Writes lengths or starts of a DeviceCase.
void overwrite(const ConstTensorView& view, const std::vector<int32_t>& values);

/// B11: the pages of a case that has three, at places of a pool of NaN codes whose offsets pass 2^31 and 2^32 bytes.
/// Every run has the bits of the run in the case's own pool.
void expect_same_in_a_large_pool(const Case& host, DeviceCase& device, const AttentionPlan& plan);

}  // namespace quaver::testing
