// Append in front of attention.
#pragma once

#include "device_case.h"
#include "kv_cache/device_cache.h"
#include "testing/random.h"

namespace quaver::testing {

/// K and V of a step's query tokens, and their slots.
class NewKeys {
 public:
  NewKeys(const Case& host, const DeviceCase& device, uint64_t seed) {
    const KvLayout& layout = host.problem.kv;
    std::vector<int64_t> slots;
    const int64_t width = host.args.block_table.dim(1);
    for (size_t b = 0; b < host.seq_lens.size(); ++b) {
      const int32_t tokens = host.query_start[b + 1] - host.query_start[b];
      for (int32_t i = 0; i < tokens; ++i) {
        const int64_t position = host.seq_lens[b] - tokens + i;
        const bool exists = position >= 0 && host.seq_lens[b] > 0;
        const int64_t page =
            exists ? host.block_table[b * static_cast<size_t>(width) + static_cast<size_t>(position / layout.page_size)]
                   : 0;
        slots.push_back(exists ? page * layout.page_size + position % layout.page_size : -1);
      }
    }
    Random random(seed);
    std::vector<Bf16> rows(slots.size() * static_cast<size_t>(layout.num_kv_heads * layout.head_dim_k));
    const auto fill = [&] {
      for (Bf16& x : rows) x = to_bf16(random.normal());
      return to_device(rows);
    };
    k_ = fill();
    v_ = fill();
    slots_ = to_device(slots);
    const int64_t tokens = std::ssize(slots);
    args_.layout = layout;
    args_.k = {k_.data(), DType::kBF16, {tokens, layout.num_kv_heads, layout.head_dim_k}, device.args.pages.device};
    args_.v = {v_.data(), DType::kBF16, {tokens, layout.num_kv_heads, layout.head_dim_v}, device.args.pages.device};
    args_.slots = {slots_.data(), DType::kI64, {tokens}, device.args.pages.device};
    args_.pages = {const_cast<void*>(device.args.pages.data),
                   DType::kU8,
                   {device.args.pages.dim(0), device.args.pages.dim(1)},
                   device.args.pages.device};
  }

  void append(cudaStream_t stream) const { append_kv(args_, stream); }

 private:
  DeviceBuffer<Bf16> k_, v_;
  DeviceBuffer<int64_t> slots_;
  AppendArgs args_;
};

}  // namespace quaver::testing
