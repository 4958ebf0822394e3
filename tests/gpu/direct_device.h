// A testing::DirectCase in device memory.
#pragma once

#include <vector>

#include "device_case.h"
#include "testing/direct_case.h"

namespace quaver::testing {

class DeviceDirect {
 public:
  explicit DeviceDirect(DirectCase& host) : host_(host), args(host.args) {
    for (const auto& [rows, view] : {std::pair{&host.q, &args.q}, {&host.k, &args.k}, {&host.v, &args.v}}) {
      const auto offset = static_cast<const uint8_t*>(rows->view.data) - rows->bytes.data();
      buffers_.push_back(to_device(rows->bytes));
      view->data = buffers_.back().data() + offset;
      view->device = kGpu;
    }
    for (ConstTensorView* const view :
         {&args.query_start, &args.key_start, &args.k_scale, &args.v_scale, &args.q_descale, &args.k_descale,
          &args.v_descale, &args.sinks, &args.span_ids}) {
      view->device = kGpu;
      if (!view->given()) continue;
      const auto* const bytes = static_cast<const uint8_t*>(view->data);
      buffers_.push_back(
          to_device(std::vector<uint8_t>(bytes, bytes + view->num_elements() * dtype_bytes(view->dtype))));
      view->data = buffers_.back().data();
    }
    args.out.device = args.lse.device = kGpu;
  }

  /// Leaves out and lse in the host case.
  void run(DirectAttention& attention) {
    host_.poison_outputs();
    const DeviceBuffer<uint8_t> out = to_device(host_.out_bytes);
    const DeviceBuffer<float> lse = to_device(host_.lse);
    args.out.data = out.data();
    args.lse.data = lse.data();
    attention.run(host_.problem, args);
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    host_.out_bytes = to_host(out);
    host_.lse = to_host(lse);
  }

 private:
  static constexpr Device kGpu{.kind = Device::Kind::kCuda, .index = 0};
  DirectCase& host_;
  std::vector<DeviceBuffer<uint8_t>> buffers_;

 public:
  DirectAttentionArgs args;  ///< device views
};

}  // namespace quaver::testing
