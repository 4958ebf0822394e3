// Batch-invariant mode with few short requests, which emulation can afford.
#include "batch_invariance_case.h"
#include "testing/expect_error.h"

namespace quaver::testing {
namespace {

TEST_P(DeviceBatchInvariance, FewRequests) {
  expect_answers_of_the_request_alone({{.max_num_seqs = 4, .max_num_batched_tokens = 40, .prefill_chunk_tokens = 37}},
                                      false);
}

INSTANTIATE_TEST_SUITE_P(Models, DeviceBatchInvariance,
                         ::testing::Values(InvarianceCase{
                             .name = "Gemma4Channel",
                             .config = with_fp8_kernels(tiny_gemma4_config(), 256, fp8_dynamic()),
                             .num_requests = 4,
                             .num_pages = 60,
                             .max_tokens = 3,
                             .graphs = false}),
                         [](const auto& each) { return each.param.name; });

TEST(DeviceBatchInvariance, NeedsChunksOfThreeTokens) {
  EngineOptions options = kEngine;
  options.batch_invariant = true;
  options.prefill_chunk_tokens = 2;
  expect_error([&] { Engine(on_gpu(golden("gemma3_tiny"), runner_options(), options), options, {}); },
               ErrorKind::kInvalidArgument, {"prefill_chunk_tokens", "2", "at least 3"});
}

}  // namespace
}  // namespace quaver::testing
