// One append in host memory, run by append_kv() on the CPU or on the GPU.
#pragma once

#include <functional>
#include <numeric>
#include <vector>

#include "device_case.h"
#include "kv_cache/device_cache.h"
#include "kv_cache/page_format.h"
#include "testing/random.h"

namespace quaver::testing {

inline const Device kGpu{.kind = Device::Kind::kCuda, .index = 0};

struct DeviceAppend {
  /// N(0, 16) rows with NaN, infinities, -0, subnormals and values beyond 448 among them, over random old page bytes.
  DeviceAppend(const KvLayout& page_layout, std::vector<int64_t> token_slots, int64_t num_pages, uint64_t seed = 1)
      : layout(page_layout), slots(std::move(token_slots)) {
    Random random(seed);
    constexpr uint16_t kSpecials[] = {0x7FC0, 0xFF81, 0x7F80, 0xFF80, 0x8000, 0x0001, 0x43E8, 0xC700, 0x3A80, 0x7F7F};
    const auto fill = [&](std::vector<Bf16>& rows, int dim) {
      rows.resize(slots.size() * static_cast<size_t>(layout.num_kv_heads) * static_cast<size_t>(dim));
      for (Bf16& x : rows) {
        x = to_bf16(static_cast<float>(random.below(1 << 16) - (1 << 15)) * 0x1p-12F);
        if (random.below(32) == 0) x = Bf16{kSpecials[random.below(std::ssize(kSpecials))]};
      }
    };
    fill(k, layout.head_dim_k);
    fill(v, layout.head_dim_v);
    page_stride = page_format::page_bytes(layout) + 48;  // bytes that no layout owns
    pages.resize(static_cast<size_t>(num_pages * page_stride));
    for (uint8_t& byte : pages) byte = static_cast<uint8_t>(random.bits());
  }

  [[nodiscard]] AppendArgs views(Device where) const {
    const int64_t tokens = std::ssize(slots);
    const int64_t heads = layout.num_kv_heads;
    AppendArgs args;
    args.layout = layout;
    args.k = ConstTensorView(k.data(), DType::kBF16, {tokens, heads, layout.head_dim_k}, where);
    args.v = ConstTensorView(v.data(), DType::kBF16, {tokens, heads, layout.head_dim_v}, where);
    args.slots = ConstTensorView(slots.data(), DType::kI64, {tokens}, where);
    if (!k_scale.empty()) args.k_scale = ConstTensorView(k_scale.data(), DType::kF32, {heads}, where);
    if (!v_scale.empty()) args.v_scale = ConstTensorView(v_scale.data(), DType::kF32, {heads}, where);
    args.pages = TensorView(nullptr, DType::kU8, {std::ssize(pages) / page_stride, page_stride}, where);
    return args;
  }

  [[nodiscard]] std::vector<uint8_t> on_cpu() const {
    std::vector<uint8_t> out = pages;
    AppendArgs args = views({});
    args.pages.data = out.data();
    append_kv(args);
    return out;
  }

  /// `change` sees the device views in front of the call.
  [[nodiscard]] std::vector<uint8_t> on_gpu(const std::function<void(AppendArgs&)>& change = {}) const {
    const auto device_k = to_device(k);
    const auto device_v = to_device(v);
    const auto device_slots = to_device(slots);
    const auto device_k_scale = to_device(k_scale);
    const auto device_v_scale = to_device(v_scale);
    const auto device_pages = to_device(pages);
    AppendArgs args = views(kGpu);
    args.k.data = device_k.data();
    args.v.data = device_v.data();
    args.slots.data = device_slots.data();
    args.k_scale.data = device_k_scale.data();
    args.v_scale.data = device_v_scale.data();
    args.pages.data = device_pages.data();
    if (change) change(args);
    append_kv(args, nullptr);
    check_cuda(cudaDeviceSynchronize(), "append_kv");
    return to_host(device_pages);
  }

  KvLayout layout{};
  std::vector<int64_t> slots;
  std::vector<Bf16> k, v;
  std::vector<float> k_scale, v_scale;
  int64_t page_stride = 0;
  std::vector<uint8_t> pages;
};

inline std::vector<int64_t> consecutive(int64_t first, int64_t count) {
  std::vector<int64_t> slots(static_cast<size_t>(count));
  std::iota(slots.begin(), slots.end(), first);
  return slots;
}

/// `count` different slots in random order.
inline std::vector<int64_t> shuffled(int64_t count, int64_t num_slots, uint64_t seed) {
  std::vector<int64_t> slots = consecutive(0, num_slots);
  Random random(seed);
  for (int64_t i = num_slots; i > 1; --i) {
    std::swap(slots[static_cast<size_t>(i - 1)], slots[static_cast<size_t>(random.below(i))]);
  }
  slots.resize(static_cast<size_t>(count));
  return slots;
}

}  // namespace quaver::testing
