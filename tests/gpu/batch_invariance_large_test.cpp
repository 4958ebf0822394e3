// Batch-invariant mode with many requests, of which some are preempted, and with long ones, whose keys are cut.
#include "batch_invariance_case.h"

namespace quaver::testing {
namespace {

class ManyRequests : public DeviceBatchInvariance {};

TEST_P(ManyRequests, AnswersAreThoseOfTheRequestAlone) {
  expect_answers_of_the_request_alone({{.max_num_seqs = 33, .max_num_batched_tokens = 300},
                                       {.max_num_seqs = 7, .max_num_batched_tokens = 48},
                                       {.max_num_seqs = 20, .prefill_chunk_tokens = 3}},
                                      true);
}

INSTANTIATE_TEST_SUITE_P(
    Models, ManyRequests,
    ::testing::Values(InvarianceCase{"Gemma4Channel", with_fp8_kernels(tiny_gemma4_config(), 512, fp8_dynamic())},
                      InvarianceCase{"Gemma4Tensor", with_fp8_kernels(tiny_gemma4_config(), 256, fp8_static())},
                      InvarianceCase{"Gemma4Block", with_fp8_kernels(tiny_gemma4_config(), 128, fp8_block())},
                      InvarianceCase{"Gemma3Bf16", with_fp8_kernels(tiny_gemma3_config(), 0)},
                      InvarianceCase{"Gemma3Bf16Cache", with_fp8_kernels(tiny_gemma3_config(), 0), KvDtype::kBF16}),
    [](const auto& each) { return each.param.name; });

class LongRequests : public DeviceBatchInvariance {};

// Up to 9,200 keys: the decode kernel has three fixed parts of them, and a window may lie across the end of one.
TEST_P(LongRequests, AnswersAreThoseOfTheRequestAlone) {
  expect_answers_of_the_request_alone({{.max_num_seqs = 8, .max_num_batched_tokens = 1000}}, false);
}

nlohmann::json with_window(nlohmann::json config, int window) {
  config["sliding_window"] = window;
  return config;
}

INSTANTIATE_TEST_SUITE_P(Models, LongRequests,
                         ::testing::Values(InvarianceCase{
                             .name = "Gemma4Channel",
                             .config = with_window(with_fp8_kernels(tiny_gemma4_config(), 512, fp8_dynamic()), 1024),
                             .num_requests = 8,
                             .num_pages = 8000,
                             .max_tokens = 40,
                             .repeat_prompt = 100}),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace quaver::testing
