// Page copies and read-back on the GPU against the CPU's.
#include <gtest/gtest.h>

#include <cstring>

#include "append_device.h"
#include "testing/metric.h"

namespace quaver::testing {
namespace {

// The copies of a step take effect one after another: a page may be written after it was read, or read after it was
// written.
TEST(CopyPages, InOrderInEverySlab) {
  constexpr int64_t kSlabs = 3;
  constexpr int64_t kPages = 600;
  constexpr int64_t kBytes = 16 * 1100;  // more than one CTA's piece
  constexpr int64_t kStride = kBytes + 32;
  std::vector<uint8_t> bytes(static_cast<size_t>(kSlabs * kPages * kStride));
  Random random(2);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.bits());
  std::vector<PageCopy> chain{{0, 1}, {1, 2}, {3, 4}, {5, 3}, {6, 7}, {8, 7}, {9, 9}};
  std::vector<PageCopy> many;  // more than one launch takes
  for (int32_t i = 0; i < 290; ++i) many.push_back({i, 599 - i});
  for (const std::vector<PageCopy>& copies : {chain, many, std::vector<PageCopy>{}}) {
    std::vector<uint8_t> expected = bytes;
    for (const PageCopy& copy : copies) {
      for (int64_t slab = 0; slab < kSlabs; ++slab) {
        uint8_t* pages = expected.data() + slab * kPages * kStride;
        std::memmove(pages + copy.to * kStride, pages + copy.from * kStride, kBytes);
      }
    }
    const auto device = to_device(bytes);
    TensorView slabs(device.data(), DType::kU8, {kSlabs, kPages, kBytes}, kGpu);
    slabs.strides = {kPages * kStride, kStride, 1};
    copy_pages(slabs, copies, nullptr);
    check_cuda(cudaDeviceSynchronize(), "copy_pages");
    EXPECT_EQ(to_host(device), expected);
  }
}

TEST(CopyPages, WhatCannotBeCopiedIsRefused) {
  const DeviceBuffer<uint8_t> device(4 * 64);
  TensorView slabs(device.data(), DType::kU8, {1, 4, 64}, kGpu);
  const auto copy = [&](int32_t from, int32_t to) { copy_pages(slabs, std::vector<PageCopy>{{from, to}}, nullptr); };
  EXPECT_THROW(copy(0, 4), Error);
  EXPECT_THROW(copy(-1, 0), Error);
  slabs.shape[2] = 60;
  EXPECT_THROW(copy(0, 1), Error);
  slabs.shape[2] = 64;
  slabs.device = {};
  EXPECT_THROW(copy(0, 1), Error);
}

TEST(ReadBack, IsTheCpus) {
  for (const KvDtype dtype : {KvDtype::kE4M3, KvDtype::kBF16}) {
    for (const bool scales : {false, true}) {
      const Case host({.query_lens = {1, 1},
                       .kv_lens = {5, 203},
                       .num_q_heads = 3,
                       .kv = {.dtype = dtype, .num_kv_heads = 3, .head_dim_k = 96, .head_dim_v = 80, .page_size = 32},
                       .scales = scales});
      const auto width = static_cast<int64_t>(host.block_table.size()) / 2;
      std::vector<int32_t> table(host.block_table.begin() + width, host.block_table.end());
      table[1] = -1;  // released left of a window
      constexpr int64_t kLength = 203;
      const NaturalKv expected =
          read_back(host.problem.kv, host.args.pages, table, kLength, host.k_scale, host.v_scale);
      const auto pages = to_device(host.pages);
      const auto device_table = to_device(table);
      const auto k_scale = to_device(host.k_scale);
      const auto v_scale = to_device(host.v_scale);
      for (const DType out : {DType::kF32, DType::kBF16}) {
        const DeviceBuffer<uint8_t> k(kLength * 3 * 96 * dtype_bytes(out));
        const DeviceBuffer<uint8_t> v(kLength * 3 * 80 * dtype_bytes(out));
        ReadBackArgs args;
        args.layout = host.problem.kv;
        args.pages = host.args.pages;
        args.pages.data = pages.data();
        args.pages.device = kGpu;
        args.block_table = ConstTensorView(device_table.data(), DType::kI32, {width}, kGpu);
        args.length = kLength;
        if (scales) {
          args.k_scale = ConstTensorView(k_scale.data(), DType::kF32, {3}, kGpu);
          args.v_scale = ConstTensorView(v_scale.data(), DType::kF32, {3}, kGpu);
        }
        args.k = TensorView(k.data(), out, {kLength, 3, 96}, kGpu);
        args.v = TensorView(v.data(), out, {kLength, 3, 80}, kGpu);
        read_back(args, nullptr);
        check_cuda(cudaDeviceSynchronize(), "read_back");
        const auto same = [&](const DeviceBuffer<uint8_t>& device, const std::vector<float>& natural) {
          const std::vector<uint8_t> got = to_host(device);
          for (size_t i = 0; i < natural.size(); ++i) {
            float value = 0.0F;
            if (out == DType::kF32) {
              std::memcpy(&value, got.data() + 4 * i, 4);
              ASSERT_EQ(value, natural[i]) << i;
            } else {
              Bf16 rounded;
              std::memcpy(&rounded, got.data() + 2 * i, 2);
              ASSERT_EQ(rounded, to_bf16(natural[i])) << i;
            }
          }
        };
        same(k, expected.k);
        same(v, expected.v);
        args.length = width * 32 + 1;
        EXPECT_THROW(read_back(args, nullptr), Error);
      }
    }
  }
}

}  // namespace
}  // namespace quaver::testing
