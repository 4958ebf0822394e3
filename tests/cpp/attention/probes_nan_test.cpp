// What a NaN in the cache may reach (docs/numerics.md, "NaN").
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "attention/probes.h"
#include "kv_cache/page_format.h"

namespace quaver::probes {
namespace {

// Two sequences of two kv heads; 0x7F everywhere but in their tokens is already there (testing/cases.h).
class NanContainment : public ::testing::TestWithParam<Precision> {
 protected:
  static constexpr int kDim = 64;
  static CaseSpec base() {
    CaseSpec s = spec(4, 2, kDim, {3, 2}, {150, 40});
    s.softmax_scale = 0.125F;
    s.window = 100;
    return s;
  }
  static Result emulate(Case& c) {
    c.poison_outputs();
    attention_emulated(c.problem, EmulationOptions{.precision = GetParam()}, c.args);
    return {.out = c.out_values(), .lse = c.lse};
  }
  static uint8_t* token_byte(Case& c, int sequence, int64_t token, int head, bool value) {
    const KvLayout& kv = c.problem.kv;
    const int64_t page =
        c.block_table[static_cast<size_t>(sequence * c.args.block_table.dim(1) + token / kv.page_size)];
    const auto slot = static_cast<int>(token % kv.page_size);
    return c.pages.data() + page * c.args.pages.dim(1) +
           (value ? page_format::v_offset(kv, head, slot, 5) : page_format::k_offset(kv, head, slot, 5));
  }
};

// Tokens past the end and left of every row's window may hold anything.
TEST_P(NanContainment, BytesThatNoRowSeesNeverMatter) {
  Case clean(base());
  const Result expected = emulate(clean);
  for (const float value : expected.out) ASSERT_TRUE(std::isfinite(value));
  Case dirty(base());
  // sequence 0: rows sit at 147 … 149, so keys before 147 - 99 = 48 are outside every window
  for (int64_t token = 0; token < 48; ++token) {
    for (int head = 0; head < 2; ++head) {
      *token_byte(dirty, 0, token, head, true) = 0x7F;
      *token_byte(dirty, 0, token, head, false) = 0xFF;
    }
  }
  const Result result = emulate(dirty);
  EXPECT_TRUE(same_bits(result.out, expected.out));
  EXPECT_TRUE(same_bits(result.lse, expected.lse));
}

// A NaN in a stored token reaches rows of the same sequence and kv head only. In K: the row and its LSE are NaN. In V:
// the column is NaN, the LSE does not know.
TEST_P(NanContainment, AStoredNanStaysInItsSequenceAndHead) {
  Case clean(base());
  const Result expected = emulate(clean);
  for (const bool value : {false, true}) {
    Case c(base());
    *token_byte(c, 0, 120, 1, value) = 0x7F;
    const Result result = emulate(c);
    for (size_t row = 0; row < result.lse.size(); ++row) {
      const bool touched = row < 12 && row % 4 >= 2;  // sequence 0 has 3 tokens; query heads 2, 3 read kv head 1
      for (size_t d = 0; d < kDim; ++d) {
        const float out = result.out[row * kDim + d];
        if (touched && (!value || d == 5)) {
          EXPECT_TRUE(std::isnan(out)) << "row " << row << " dim " << d;
        } else {
          EXPECT_EQ(out, expected.out[row * kDim + d]) << "row " << row << " dim " << d;
        }
      }
      if (touched && !value) {
        EXPECT_TRUE(std::isnan(result.lse[row]));
      } else {
        EXPECT_EQ(result.lse[row], expected.lse[row]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, NanContainment, ::testing::Values(Precision::kSplit, Precision::kSingle),
                         [](const auto& mode) { return std::string(precision_name(mode.param)); });

}  // namespace
}  // namespace quaver::probes
