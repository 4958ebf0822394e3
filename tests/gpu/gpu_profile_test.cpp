// `--profile` on a tiny model: which parts there are and how often they begin. Times are the machine's affair.
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "engine/step_profile.h"

namespace quaver {
namespace {

TEST(GpuProfile, PartsOfBothSteps) {
  const std::filesystem::path folder = std::filesystem::path(QUAVER_SOURCE_DIR) / "tests" / "golden" / "gemma4_tiny";
  const RunnerOptions options{.block_size = 16, .kv_cache_bytes = 2 << 20};
  const ProfileLoad load{.decode_sequences = 2, .context = 40, .prefill_tokens = 24, .idle_seconds = 0};
  const std::vector<StepProfile> steps = profile_steps(0, folder, options, load);
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_EQ(steps[0].name, "prefill");
  EXPECT_EQ(steps[0].load.num_tokens(), 24);
  EXPECT_EQ(steps[1].name, "decode");
  EXPECT_EQ(steps[1].load.sequences.size(), 2U);
  for (const SequenceLoad& sequence : steps[1].load.sequences) {
    EXPECT_EQ(sequence.query_len, 1);
    EXPECT_EQ(sequence.kv_len, 40);
  }
  for (const StepProfile& step : steps) {
    EXPECT_GT(step.step_seconds, 0);
    EXPECT_GT(step.after_idle_seconds, 0);
    std::map<StepPart, int64_t> begins;
    for (const PartProfile& part : step.parts) {
      EXPECT_GE(part.seconds, 0);
      begins[part.part] = part.launches;
    }
    // 6 layers, 2 of them full; BF16 weights quantise nothing.
    for (const StepPart part : {StepPart::kQkvGemm, StepPart::kQkvAppend, StepPart::kOutGemm, StepPart::kGateUpGemm,
                                StepPart::kGeglu, StepPart::kDownGemm}) {
      EXPECT_EQ(begins[part], 6) << part_name(part);
    }
    EXPECT_EQ(begins[StepPart::kFullAttention], 2);
    EXPECT_EQ(begins[StepPart::kSlidingAttention], 4);
    EXPECT_EQ(begins[StepPart::kNorms], 13);
    EXPECT_EQ(begins[StepPart::kLmHead], 1);
    EXPECT_EQ(begins[StepPart::kSampling], 1);
    EXPECT_FALSE(begins.contains(StepPart::kQuantize));
  }
}

}  // namespace
}  // namespace quaver
