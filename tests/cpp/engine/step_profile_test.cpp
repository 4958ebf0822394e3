#include "engine/step_profile.h"

#include <gtest/gtest.h>

#include "engine/load_runner.h"
#include "testing/expect_error.h"

namespace quaver {
namespace {

TEST(StepProfile, PartsLastUntilTheNextBegins) {
  std::array<PartCost, kNumStepParts> costs{};
  costs[static_cast<size_t>(StepPart::kNorms)].bytes = 7;
  const PartMarks marks{{StepPart::kPrepare, 0.0},
                        {StepPart::kNorms, 0.5},
                        {StepPart::kQkvGemm, 0.75},
                        {StepPart::kNorms, 2.0},
                        {StepPart::kSampling, 2.5}};
  StepProfile step{.name = "decode", .load = {}, .step_seconds = 2.75, .parts = add_up(marks, 3.0, costs)};
  ASSERT_EQ(step.parts.size(), 4U);
  EXPECT_EQ(step.parts[0].part, StepPart::kPrepare);
  EXPECT_DOUBLE_EQ(step.parts[0].seconds, 0.5);
  EXPECT_EQ(step.parts[1].part, StepPart::kNorms);
  EXPECT_DOUBLE_EQ(step.parts[1].seconds, 0.75);
  EXPECT_EQ(step.parts[1].launches, 2);
  EXPECT_EQ(step.parts[1].cost.bytes, 7);
  EXPECT_DOUBLE_EQ(step.parts[2].seconds, 1.25);
  EXPECT_DOUBLE_EQ(step.parts[3].seconds, 0.5);
  EXPECT_DOUBLE_EQ(step.gap_seconds(), -0.25);  // the step as it is served overlaps launches
  EXPECT_TRUE(add_up({}, 1.0, costs).empty());
  testing::expect_error([&] { (void)add_up(marks, 2.0, costs); }, ErrorKind::kInternal, {"sampling", "ascend"});
}

TEST(Devices, NamesAndRefusals) {
  EXPECT_EQ(device_by_name("cpu"), Device{});
  const Device first{.kind = Device::Kind::kCuda, .index = 0};
  EXPECT_EQ(device_by_name("auto"), num_gpus() > 0 ? first : Device{});
  for (const char* const name : {"gpu", "", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "CPU", "cuda:99999999999"}) {
    testing::expect_error([&] { (void)device_by_name(name); }, ErrorKind::kInvalidArgument,
                          {"expected auto, cpu, cuda or cuda:N"});
  }
  if (built_with_cuda()) return;
  EXPECT_EQ(num_gpus(), 0);
  testing::expect_error([] { (void)device_by_name("cuda:0"); }, ErrorKind::kUnsupported,
                        {"device cuda:0: expected cpu, this build has no CUDA"});
  testing::expect_error([] { (void)load_runner({.kind = Device::Kind::kCuda, .index = 2}, "nowhere", {}, {}); },
                        ErrorKind::kUnsupported, {"cuda:2", "no CUDA"});
  testing::expect_error([] { (void)profile_steps(0, "nowhere", {}, {}); }, ErrorKind::kUnsupported, {"CUDA"});
}

}  // namespace
}  // namespace quaver
