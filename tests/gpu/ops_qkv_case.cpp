#include "ops_qkv_case.h"

#include <algorithm>
#include <cmath>

#include "append_device.h"
#include "core/e4m3.h"
#include "ops/cuda/device_ops.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"

namespace quaver::testing {
namespace {

constexpr double kEps = 1e-6;

/// One step in host memory.
struct QkvStep {
  explicit QkvStep(const QkvSpec& from) : spec(from) {
    const int dim = spec.layout.head_dim_k;
    tokens = std::ssize(spec.slots);
    heads = spec.num_q_heads + (spec.k_eq_v ? 1 : 2) * spec.layout.num_kv_heads;
    qkv = test_rows(tokens, int64_t{heads} * dim, 21, 2.0F);
    q_norm = test_weights(dim, 22);
    k_norm = test_weights(dim, 23);
    rope = {.head_dim = dim, .rotary_pairs = spec.rotary_pairs, .theta = spec.theta, .factor = spec.rope_factor};
    Random random(24);
    for (int64_t t = 0; t < tokens; ++t) positions.push_back(static_cast<int32_t>(random.below(131072)));
    if (spec.scaled) {
      for (int head = 0; head < spec.layout.num_kv_heads; ++head) {
        k_scale.push_back(0.013F + 0.001F * static_cast<float>(head));
        v_scale.push_back(0.021F - 0.0003F * static_cast<float>(head));
      }
    }
    page_stride = page_format::page_bytes(spec.layout) + 48;
    pages.resize(static_cast<size_t>(spec.num_pages * page_stride));
    for (uint8_t& byte : pages) byte = static_cast<uint8_t>(random.bits());
  }

  /// [tokens, count, dim] in FP32: heads `first` … of every token.
  [[nodiscard]] std::vector<float> heads_from(int first, int count) const {
    const int64_t dim = spec.layout.head_dim_k;
    std::vector<float> values;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = first * dim; i < (first + count) * dim; ++i) {
        values.push_back(to_float(qkv[static_cast<size_t>(t * heads * dim + i)]));
      }
    }
    return values;
  }

  QkvSpec spec;
  int64_t tokens = 0;
  int heads = 0;
  std::vector<Bf16> qkv;
  std::vector<float> q_norm, k_norm, k_scale, v_scale;
  std::vector<int32_t> positions;
  RopeShape rope{};
  int64_t page_stride = 0;
  std::vector<uint8_t> pages;
};

/// Pages after the CPU's norms, rotation and append.
std::vector<uint8_t> cpu_pages(const QkvStep& step) {
  const QkvSpec& spec = step.spec;
  const int kv_heads = spec.layout.num_kv_heads;
  const int64_t dim = spec.layout.head_dim_k;
  std::vector<float> k = step.heads_from(spec.num_q_heads, kv_heads);
  std::vector<float> v = step.heads_from(spec.num_q_heads + (spec.k_eq_v ? 0 : kv_heads), kv_heads);
  rms_norm(k.data(), step.tokens * kv_heads, dim, step.k_norm, kEps, k.data());
  if (spec.v_norm) rms_norm(v.data(), step.tokens * kv_heads, dim, {}, kEps, v.data());
  RopeTable table;
  rope_table(rope_frequencies(step.rope), step.positions, table);
  apply_rope(step.rope, table, step.tokens, kv_heads, k.data());
  std::vector<uint8_t> pages = step.pages;
  AppendArgs args;
  args.layout = spec.layout;
  args.k = ConstTensorView(k.data(), DType::kF32, {step.tokens, kv_heads, dim});
  args.v = ConstTensorView(v.data(), DType::kF32, {step.tokens, kv_heads, dim});
  args.slots = ConstTensorView(spec.slots.data(), DType::kI64, {step.tokens});
  if (spec.scaled) {
    args.k_scale = ConstTensorView(step.k_scale.data(), DType::kF32, {kv_heads});
    args.v_scale = ConstTensorView(step.v_scale.data(), DType::kF32, {kv_heads});
  }
  args.pages = TensorView(pages.data(), DType::kU8, {spec.num_pages, step.page_stride});
  append_kv(args);
  return pages;
}

struct QkvResult {
  std::vector<Bf16> qkv;
  std::vector<uint8_t> pages;
  friend bool operator==(const QkvResult&, const QkvResult&) = default;
};

QkvResult run_on_device(const QkvStep& step) {
  const QkvSpec& spec = step.spec;
  const auto qkv = to_device(step.qkv);
  const auto q_norm = to_device(step.q_norm);
  const auto k_norm = to_device(step.k_norm);
  const auto slots = to_device(spec.slots);
  const auto k_scale = to_device(step.k_scale);
  const auto v_scale = to_device(step.v_scale);
  const auto pages = to_device(step.pages);
  const auto positions = to_device(step.positions);
  const auto frequencies = to_device(rope_frequencies(step.rope));
  const DeviceBuffer<float> table(step.tokens * device_ops::rope_table_width(spec.rotary_pairs));
  device_ops::rope_table({.positions = positions.data(),
                          .frequencies = frequencies.data(),
                          .rotary_pairs = spec.rotary_pairs,
                          .num_tokens = step.tokens,
                          .table = table.data()},
                         nullptr);
  device_ops::qkv_append({.qkv = qkv.data(),
                          .num_tokens = step.tokens,
                          .num_q_heads = spec.num_q_heads,
                          .layout = spec.layout,
                          .k_eq_v = spec.k_eq_v,
                          .q_norm = q_norm.data(),
                          .k_norm = k_norm.data(),
                          .v_norm = spec.v_norm,
                          .eps = static_cast<float>(kEps),
                          .rotary_pairs = spec.rotary_pairs,
                          .rope_table = table.data(),
                          .slots = slots.data(),
                          .k_scale = k_scale.data(),
                          .v_scale = v_scale.data(),
                          .pages = TensorView(pages.data(), DType::kU8, {spec.num_pages, step.page_stride}, kGpu)},
                         nullptr);
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  return {.qkv = to_host(qkv), .pages = to_host(pages)};
}

/// Q of one token and head in float64: norm, then rotation of pairs (j, j + dim/2).
std::vector<double> exact_q(const QkvStep& step, const std::vector<float>& frequencies, int64_t token, int head) {
  const int64_t dim = step.spec.layout.head_dim_k;
  const Bf16* const row = step.qkv.data() + (token * step.heads + head) * dim;
  double squares = 0.0;
  for (int64_t i = 0; i < dim; ++i) squares += std::pow(static_cast<double>(to_float(row[i])), 2);
  const double scale = 1.0 / std::sqrt(squares / static_cast<double>(dim) + kEps);
  std::vector<double> q(static_cast<size_t>(dim));
  for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<double>(to_float(row[i])) * scale * step.q_norm[i];
  const auto position = static_cast<float>(step.positions[static_cast<size_t>(token)]);
  for (size_t j = 0; j < frequencies.size(); ++j) {
    const double angle = position * frequencies[j];  // FP32 product, as the model defines it
    const double a = q[j];
    const double b = q[j + q.size() / 2];
    q[j] = a * std::cos(angle) - b * std::sin(angle);
    q[j + q.size() / 2] = b * std::cos(angle) + a * std::sin(angle);
  }
  return q;
}

void expect_q(const QkvStep& step, const std::vector<Bf16>& qkv) {
  const int64_t dim = step.spec.layout.head_dim_k;
  const std::vector<float> frequencies = rope_frequencies(step.rope);
  for (int64_t token = 0; token < step.tokens; ++token) {
    for (int head = 0; head < step.heads; ++head) {
      const auto at = static_cast<size_t>((token * step.heads + head) * dim);
      if (head >= step.spec.num_q_heads) {
        for (size_t i = at; i < at + static_cast<size_t>(dim); ++i) ASSERT_EQ(qkv[i], step.qkv[i]) << "K or V at " << i;
        continue;
      }
      const std::vector<double> q = exact_q(step, frequencies, token, head);
      // A rotation may cancel: 1e-6 of the largest value of the head.
      double most = 0.0;
      for (const double value : q) most = std::max(most, std::abs(value));
      for (size_t i = 0; i < q.size(); ++i) {
        ASSERT_NEAR(to_float(qkv[at + i]), q[i], 0x1p-8 * std::abs(q[i]) + 1e-6 * most)
            << "token " << token << ", head " << head << ", column " << i;
      }
    }
  }
}

/// Equal, or the next code (BF16: value) where FP32's last bits decide a rounding.
void expect_pages(const QkvSpec& spec, const std::vector<uint8_t>& got, const std::vector<uint8_t>& cpu) {
  ASSERT_EQ(got.size(), cpu.size());
  int64_t neighbours = 0;
  if (spec.layout.dtype == KvDtype::kE4M3) {
    for (size_t i = 0; i < got.size(); ++i) {
      if (got[i] == cpu[i]) continue;
      ++neighbours;
      const bool tiny = (got[i] & 0x7F) <= 1 && (cpu[i] & 0x7F) <= 1;  // the sign of 0
      ASSERT_TRUE(tiny || std::abs(int{got[i]} - int{cpu[i]}) == 1)
          << "byte " << i << ": " << int{got[i]} << ", CPU " << int{cpu[i]};
    }
  } else {
    for (size_t i = 0; i < got.size(); i += 2) {
      const auto value = [&](const std::vector<uint8_t>& bytes) { return bytes[i] | bytes[i + 1] << 8; };
      if (value(got) == value(cpu)) continue;
      ++neighbours;
      const float a = to_float(Bf16{static_cast<uint16_t>(value(got))});
      const float b = to_float(Bf16{static_cast<uint16_t>(value(cpu))});
      ASSERT_NEAR(a, b, 0x1p-7F * std::abs(b) + 1e-6F) << "byte " << i;
    }
  }
  EXPECT_LE(neighbours, 3 + std::ssize(got) / 500);
}

}  // namespace

void check_qkv_append(const QkvSpec& spec) {
  const QkvStep step(spec);
  const QkvResult result = run_on_device(step);
  EXPECT_TRUE(run_on_device(step) == result) << "second run";
  expect_q(step, result.qkv);
  expect_pages(spec, result.pages, cpu_pages(step));
}

void check_token_alone(const QkvSpec& spec, int64_t token) {
  const QkvStep step(spec);
  const QkvResult together = run_on_device(step);
  QkvStep alone = step;
  const auto at = static_cast<size_t>(token);
  const int64_t width = int64_t{step.heads} * spec.layout.head_dim_k;
  alone.tokens = 1;
  alone.spec.slots = {spec.slots[at]};
  alone.positions = {step.positions[at]};
  alone.qkv.assign(step.qkv.begin() + token * width, step.qkv.begin() + (token + 1) * width);
  const QkvResult single = run_on_device(alone);
  EXPECT_TRUE(std::equal(single.qkv.begin(), single.qkv.end(), together.qkv.begin() + token * width)) << "Q";
  const int64_t slot = spec.slots[at];
  const int64_t page = slot / spec.layout.page_size * step.page_stride;
  const auto in_page = static_cast<int>(slot % spec.layout.page_size);
  for (int head = 0; head < spec.layout.num_kv_heads; ++head) {
    for (int dim = 0; dim < spec.layout.head_dim_k; ++dim) {
      for (const int64_t offset : {page_format::k_offset(spec.layout, head, in_page, dim),
                                   page_format::v_offset(spec.layout, head, in_page, dim)}) {
        const auto byte = static_cast<size_t>(page + offset);
        ASSERT_EQ(single.pages[byte], together.pages[byte]) << "head " << head << ", column " << dim;
      }
    }
  }
}

}  // namespace quaver::testing
