#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "core/bf16.h"
#include "ops/embedding.h"
#include "ops/geglu.h"
#include "ops/sampling.h"
#include "ops/softcap.h"
#include "quaver/error.h"

namespace quaver {
namespace {

double gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

TEST(Geglu, MatchesDoubleReference) {
  for (const size_t count : {1, 7, 8, 9, 5000, 9001}) {
    std::vector<float> gate(count);
    std::vector<float> up(count);
    for (size_t i = 0; i < count; ++i) {
      gate[i] = -12.0F + 24.0F * static_cast<float>((i * 7919) % count) / static_cast<float>(count);
      up[i] = 0.5F + static_cast<float>(i % 3);
    }
    const std::vector<float> before = gate;
    geglu(gate.data(), up.data(), static_cast<int64_t>(count));
    for (size_t i = 0; i < count; ++i) {
      const double expected = gelu_tanh(before[i]) * up[i];
      // 1 + tanh cancels left of -3 even in double, so the bound there is absolute.
      ASSERT_NEAR(gate[i], expected, 1e-6 * std::abs(expected) + 1e-9) << before[i];
    }
  }
}

TEST(Geglu, ExtremeValues) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> gate{0.0F, 1e4F, -1e4F, 3e38F, std::numeric_limits<float>::quiet_NaN(), -20.0F, 1e-30F, kInf};
  const std::vector<float> up(8, 1.0F);
  geglu(gate.data(), up.data(), 8);
  EXPECT_EQ(gate[0], 0.0F);
  EXPECT_EQ(gate[1], 1e4F);
  EXPECT_NEAR(gate[2], 0.0F, 1e-30F);
  EXPECT_EQ(gate[3], 3e38F);
  EXPECT_TRUE(std::isnan(gate[4]));
  EXPECT_NEAR(gate[5], 0.0F, 1e-30F);
  EXPECT_FLOAT_EQ(gate[6], 0.5e-30F);
  EXPECT_EQ(gate[7], kInf);
}

// B29: final softcap 30 on logits [60, 30].
TEST(Softcap, GemmaFinalLogits) {
  std::vector<float> logits{60, 30};
  softcap(logits.data(), 2, 30);
  EXPECT_NEAR(logits[0], 28.920827, 2e-6);
  EXPECT_NEAR(logits[1], 22.847825, 2e-6);
  EXPECT_NEAR(log_probability(logits, 0), -0.0023016, 1e-6);
  EXPECT_NEAR(log_probability(logits, 1), -6.0753043, 1e-5);
  EXPECT_THROW(softcap(logits.data(), 2, 0), Error);
}

TEST(Embedding, GathersAndScales) {
  const std::vector<Bf16> table{to_bf16(1), to_bf16(2), to_bf16(3), to_bf16(-4), to_bf16(5), to_bf16(6)};
  const ConstTensorView view(table.data(), DType::kBF16, {3, 2});
  const std::vector<int32_t> ids{2, 0, 2};
  std::vector<float> out(6);
  embed_tokens(view, ids, 33.75, out.data());
  EXPECT_EQ(out, (std::vector<float>{168.75F, 202.5F, 33.75F, 67.5F, 168.75F, 202.5F}));
  const std::vector<int32_t> beyond{3};
  EXPECT_THROW(embed_tokens(view, beyond, 1, out.data()), Error);
  const std::vector<int32_t> negative{-1};
  EXPECT_THROW(embed_tokens(view, negative, 1, out.data()), Error);
}

}  // namespace
}  // namespace quaver
