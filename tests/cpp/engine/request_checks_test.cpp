#include "engine/request_checks.h"

#include <limits>

#include <gtest/gtest.h>

#include "testing/expect_error.h"

namespace quaver {
namespace {

// B37 and issue 3: what cannot be honoured is refused with field, value and limit.
TEST(RequestChecks, NamesFieldValueAndLimit) {
  const auto refused = [](const RequestParams& params, std::string_view message) {
    testing::expect_error([&] { check_request_params(params, 97); }, ErrorKind::kInvalidArgument, {message});
  };
  refused({.sampling = {.temperature = -1}}, "temperature -1: expected a finite number >= 0");
  refused({.max_tokens = -1}, "max_tokens -1: expected >= 0");
  refused({.max_tokens = 4, .min_tokens = 5}, "min_tokens 5: expected 0 to max_tokens 4");
  refused({.min_tokens = -1}, "min_tokens -1");
  refused({.stop_token_ids = {5, 97}}, "stop_token_ids 97: expected 0 to 96");
  refused({.stop_token_ids = {-1}}, "stop_token_ids -1");
  refused({.logit_bias = {{97, 1.0F}}}, "logit_bias id 97: expected 0 to 96");
  refused({.logit_bias = {{-1, 1.0F}}}, "logit_bias id -1");
  refused({.logit_bias = {{3, 100.5F}}}, "logit_bias 100.5 of id 3: expected in [-100, 100]");
  refused({.logit_bias = {{3, std::numeric_limits<float>::quiet_NaN()}}}, "logit_bias nan of id 3");
  refused({.logprobs = 21}, "logprobs 21: expected 0 to 20, or -1 for none");
  refused({.logprobs = -2}, "logprobs -2");
  refused({.prompt_logprobs = 1000000}, "prompt_logprobs 1000000: expected 0 to 20");
}

TEST(RequestChecks, SpansAreNamed) {
  const auto refused = [](const std::vector<TokenSpan>& spans, std::string_view message) {
    testing::expect_error([&] { check_request_spans(spans, 20, 8); }, ErrorKind::kInvalidArgument, {message});
  };
  refused({{3, 3}}, "span [3, 3): expected at least one token of the 20 of the prompt, from 0 on");
  refused({{2, 4}, {3, 5}}, "span [3, 5): expected at least one token of the 20 of the prompt, from 4 on");
  refused({{19, 21}}, "span [19, 21)");
  refused({{2, 11}}, "span [2, 11): expected at most 8 tokens");
  EXPECT_NO_THROW(check_request_spans({}, 20, 8));
  const std::vector<TokenSpan> longest{{0, 8}, {8, 16}, {16, 20}};
  EXPECT_NO_THROW(check_request_spans(longest, 20, 8));
}

TEST(RequestChecks, TakesTheLimits) {
  EXPECT_NO_THROW(check_request_params({}, 97));
  EXPECT_NO_THROW(check_request_params({.sampling = {.temperature = 1e-12},
                                        .max_tokens = 0,
                                        .stop_token_ids = {0, 96},
                                        .logit_bias = {{0, -100.0F}, {96, 100.0F}},
                                        .logprobs = 20,
                                        .prompt_logprobs = 0},
                                       97));
}

}  // namespace
}  // namespace quaver
