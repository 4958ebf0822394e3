// The CUDA append writes the bytes that the CPU's append_kv() writes, and no others, whatever the slots.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "append_device.h"

namespace quaver::testing {
namespace {

KvLayout fp8(int heads, int dim_k, int dim_v, int page_size) {
  return {.num_kv_heads = heads, .head_dim_k = dim_k, .head_dim_v = dim_v, .page_size = page_size};
}

KvLayout bf16(int heads, int dim_k, int dim_v, int page_size) {
  KvLayout layout = fp8(heads, dim_k, dim_v, page_size);
  layout.dtype = KvDtype::kBF16;
  return layout;
}

/// Index of the first difference, -1: none.
int64_t first_difference(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  const auto [left, right] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return left == a.end() && right == b.end() ? -1 : left - a.begin();
}

/// Pieces of prompts and single tokens of many sequences, each on pages of its own, some tokens skipped: a mixed step.
std::vector<int64_t> mixed_step(int page_size, int64_t num_sequences, uint64_t seed, int64_t& num_pages) {
  Random random(seed);
  std::vector<int64_t> slots;
  int64_t page = 0;
  for (int64_t sequence = 0; sequence < num_sequences; ++sequence) {
    const int64_t offset = random.below(page_size);
    const int64_t count = random.below(3) == 0 ? 1 + random.below(90) : 1;
    for (int64_t i = 0; i < count; ++i) slots.push_back(random.below(29) == 0 ? -1 : page * page_size + offset + i);
    page += (offset + count) / page_size + 1;
  }
  num_pages = page;
  return slots;
}

class AppendDims : public ::testing::TestWithParam<KvLayout> {};

TEST_P(AppendDims, BytesAreTheCpus) {
  for (const int page_size : {16, 32, 64, 128}) {
    KvLayout layout = GetParam();
    layout.page_size = page_size;
    int64_t mixed_pages = 0;
    const std::vector<int64_t> mixed = mixed_step(page_size, 40, 3, mixed_pages);
    int64_t large_pages = 0;
    const std::vector<int64_t> large = mixed_step(page_size, 60, 9, large_pages);
    ASSERT_GT(large.size(), 512U);
    std::vector<int64_t> decode(37);
    for (size_t i = 0; i < decode.size(); ++i) {
      decode[i] = static_cast<int64_t>(i) * page_size + static_cast<int64_t>(i * 7) % page_size;
    }
    struct Step {
      const char* name;
      std::vector<int64_t> slots;
      int64_t pages;
    };
    const Step steps[] = {
        {"nothing", {}, 1},
        {"one token", {page_size + 3}, 3},
        {"decode", decode, 37},
        {"mixed", mixed, mixed_pages},
        {"all skipped", std::vector<int64_t>(600, -1), 2},
        {"513 from 5", consecutive(5, 513), 513 / page_size + 2},
        {"640 aligned", consecutive(page_size, 640), 640 / page_size + 1},
        {"mixed, many", large, large_pages},
        {"shuffled few", shuffled(300, 700 / page_size * page_size, 5), 700 / page_size},
        {"shuffled many", shuffled(600, 1024, 6), 1024 / page_size},
        {"descending",
         [] {
           std::vector<int64_t> slots = consecutive(0, 600);
           std::reverse(slots.begin(), slots.end());
           return slots;
         }(),
         600 / page_size + 1},
    };
    for (const Step& step : steps) {
      SCOPED_TRACE(concat(step.name, ", page ", page_size));
      DeviceAppend append(layout, step.slots, step.pages, 17);
      EXPECT_EQ(first_difference(append.on_gpu(), append.on_cpu()), -1);
      append.k_scale = {0.37F, 3.0F};
      append.v_scale = {1.7F, 0.002F};
      EXPECT_EQ(first_difference(append.on_gpu(), append.on_cpu()), -1) << "with scales";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, AppendDims,
                         ::testing::Values(fp8(2, 64, 64, 16), fp8(2, 96, 96, 16), fp8(2, 128, 128, 16),
                                           fp8(2, 192, 192, 16), fp8(2, 256, 256, 16), fp8(2, 512, 512, 16),
                                           fp8(2, 80, 80, 16), fp8(2, 192, 128, 16), fp8(2, 16, 528, 16),
                                           bf16(2, 64, 64, 16), bf16(2, 256, 256, 16), bf16(2, 40, 75, 16)),
                         [](const auto& test) {
                           return concat(kv_dtype_name(test.param.dtype), "_k", test.param.head_dim_k, "_v",
                                         test.param.head_dim_v);
                         });

// B07: every BF16 value, in both kernels and both cache dtypes, under scales that round.
TEST(Append, EveryBf16Value) {
  for (const KvDtype dtype : {KvDtype::kE4M3, KvDtype::kBF16}) {
    for (const int dim : {64, 256}) {  // 1,024 and 256 tokens
      KvLayout layout = fp8(1, dim, dim, 64);
      layout.dtype = dtype;
      const int64_t tokens = 65536 / dim;
      DeviceAppend append(layout, consecutive(0, tokens), tokens / 64);
      for (size_t i = 0; i < 65536; ++i) append.k[i] = append.v[i] = Bf16{static_cast<uint16_t>(i)};
      EXPECT_EQ(first_difference(append.on_gpu(), append.on_cpu()), -1);
      append.k_scale = {0.3F};
      append.v_scale = {300.0F};
      EXPECT_EQ(first_difference(append.on_gpu(), append.on_cpu()), -1);
    }
  }
}

// B05: no scale and a scale of 1.0 are the same bits. B12: -1 skips, nothing else changes.
TEST(Append, NoScaleIsOneAndMinusOneSkips) {
  DeviceAppend append(fp8(2, 64, 64, 16), {3, -1, -1, 7}, 2);
  const std::vector<uint8_t> plain = append.on_gpu();
  append.k_scale = append.v_scale = {1.0F, 1.0F};
  EXPECT_EQ(append.on_gpu(), plain);
  append.k_scale.clear();
  append.v_scale.clear();
  const auto touched = [&](int64_t at) {
    for (int head = 0; head < 2; ++head) {
      for (const int token : {3, 7}) {
        for (int dim = 0; dim < 64; ++dim) {
          if (at == page_format::k_offset(append.layout, head, token, dim)) return true;
          if (at == page_format::v_offset(append.layout, head, token, dim)) return true;
        }
      }
    }
    return false;
  };
  for (size_t i = 0; i < plain.size(); ++i) {
    if (plain[i] != append.pages[i]) {
      EXPECT_TRUE(touched(static_cast<int64_t>(i))) << "byte " << i;
    }
  }
}

// B20: slices of a fused QKV buffer, one strided and one dense, broadcast rows, strided slots.
TEST(Append, StridedRowsAndSlots) {
  for (const int64_t tokens : {int64_t{70}, int64_t{600}}) {
    const DeviceAppend append(fp8(2, 96, 96, 32), consecutive(21, tokens), tokens / 32 + 2);
    const std::vector<uint8_t> expected = append.on_cpu();
    constexpr int64_t kWidth = 5 * 2 * 96;
    std::vector<Bf16> fused(static_cast<size_t>(tokens * kWidth), Bf16{0x7FC0});
    std::vector<int64_t> wide(static_cast<size_t>(3 * tokens), 1);
    for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) {
      std::copy_n(append.k.begin() + static_cast<int64_t>(t) * 192, 192,
                  fused.begin() + static_cast<int64_t>(t) * kWidth + 384);
      std::copy_n(append.v.begin() + static_cast<int64_t>(t) * 192, 192,
                  fused.begin() + static_cast<int64_t>(t) * kWidth + 576);
      wide[3 * t] = append.slots[t];
    }
    const auto buffer = to_device(fused);
    const auto slots = to_device(wide);
    const auto strided_k = [&](AppendArgs& args) {
      args.k.data = buffer.data() + 384;
      args.k.strides[0] = kWidth;
    };
    const auto strided_v = [&](AppendArgs& args) {
      args.v.data = buffer.data() + 576;
      args.v.strides[0] = kWidth;
    };
    EXPECT_EQ(append.on_gpu(strided_k), expected);
    EXPECT_EQ(append.on_gpu(strided_v), expected);
    EXPECT_EQ(append.on_gpu([&](AppendArgs& args) {
      strided_k(args);
      strided_v(args);
      args.slots.data = slots.data();
      args.slots.strides[0] = 3;
    }),
              expected);

    DeviceAppend broadcast = append;
    for (size_t i = 0; i < broadcast.k.size(); ++i) broadcast.k[i] = append.k[i % 96];
    EXPECT_EQ(append.on_gpu([](AppendArgs& args) { args.k.strides = {0, 0, 1}; }), broadcast.on_cpu());
  }
}

// What the kernels cannot take is refused before any launch, by name.
TEST(Append, WhatTheHostCanSeeIsChecked) {
  const DeviceAppend append(fp8(2, 64, 64, 16), {0, 1, 2}, 1);
  const auto refused = [&](const std::function<void(AppendArgs&)>& change, const char* part) {
    try {
      static_cast<void>(append.on_gpu(change));
      ADD_FAILURE() << "expected an error with: " << part;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  const auto moved = [](const void* data, int64_t bytes) { return static_cast<const std::byte*>(data) + bytes; };
  refused([&](AppendArgs& a) { a.k.data = moved(a.k.data, 8); }, "k address");
  refused([&](AppendArgs& a) { a.v.data = moved(a.v.data, 2); }, "v address");
  refused([](AppendArgs& a) { a.k.strides[0] = 132; }, "k stride 132 of dimension 0");
  refused([](AppendArgs& a) { a.v.strides[1] = 66; }, "v stride 66 of dimension 1");
  refused([](AppendArgs& a) { a.v.strides[2] = 2; }, "v last stride 2");
  refused([](AppendArgs& a) { a.k.dtype = DType::kF32; }, "expected bf16 rows");
  refused([](AppendArgs& a) { a.k.device = {}; }, "k bf16[3, 2, 64] on cpu");
  refused([](AppendArgs& a) { a.slots.device = {}; }, "slots i64[3] on cpu");
  refused([](AppendArgs& a) { a.pages.device = {}; }, "pages u8[1, ");
  refused([](AppendArgs& a) { a.slots.shape[0] = 2; }, "k bf16[3, 2, 64]");
  refused([](AppendArgs& a) { a.k.shape[2] = 32; }, "k bf16[3, 2, 32]");
  refused([&](AppendArgs& a) { a.pages.data = const_cast<std::byte*>(moved(a.pages.data, 8)); }, "pages address");
  refused([](AppendArgs& a) { a.pages.shape[0] = 2, a.pages.strides[0] = 4104; }, "pages stride 4104");
  refused([](AppendArgs& a) { a.pages.shape[1] = 4095; }, "expected u8[num_pages, >= 4096]");
  refused([](AppendArgs& a) { a.layout.page_size = 48; }, "page size 48");
  refused([&](AppendArgs& a) { a.v_scale = ConstTensorView(a.v.data, DType::kF32, {3}, kGpu); }, "v_scale f32[3]");
}

// B11: slots whose bytes lie beyond 2^31 and 2^32, in both kernels.
TEST(AppendLimits, PoolsBeyond32BitOffsets) {
  const KvLayout layout = fp8(16, 256, 256, 64);
  const std::vector<int64_t> far{0, 4095, 4096, 4097, 8191, 8192, 8193, 8200, 8299};
  constexpr int64_t kPages = 8300;
  const int64_t page_bytes = page_format::page_bytes(layout);
  ASSERT_EQ(page_bytes * 4096, int64_t{1} << 31);
  const DeviceBuffer<uint8_t> pool(kPages * page_bytes);
  for (const int64_t tokens : {int64_t{100}, int64_t{64} * 9}) {
    DeviceAppend near(layout, shuffled(tokens, 64 * 9, 4), 9);
    near.page_stride = page_bytes;
    near.pages.assign(static_cast<size_t>(9 * page_bytes), 0);
    const std::vector<uint8_t> expected = near.on_cpu();
    DeviceAppend append = near;
    for (int64_t& slot : append.slots) slot = far[static_cast<size_t>(slot / 64)] * 64 + slot % 64;
    check_cuda(cudaMemset(pool.data(), 0, pool.bytes()), "cudaMemset");
    static_cast<void>(append.on_gpu(
        [&](AppendArgs& args) { args.pages = TensorView(pool.data(), DType::kU8, {kPages, page_bytes}, kGpu); }));
    std::vector<uint8_t> page(static_cast<size_t>(page_bytes));
    const auto read_page = [&](int64_t id) {
      check_cuda(cudaMemcpy(page.data(), pool.data() + id * page_bytes, page.size(), cudaMemcpyDeviceToHost),
                 "cudaMemcpy");
    };
    for (size_t i = 0; i < far.size(); ++i) {
      read_page(far[i]);
      const auto begin = expected.begin() + static_cast<int64_t>(i) * page_bytes;
      EXPECT_TRUE(std::equal(page.begin(), page.end(), begin)) << "page " << far[i];
    }
    for (const int64_t untouched : {1, 4094, 4098, 8190, 8298}) {
      read_page(untouched);
      EXPECT_EQ(std::ranges::count(page, uint8_t{0}), page_bytes) << "page " << untouched;
    }
  }
}

}  // namespace
}  // namespace quaver::testing
