// From what the sampling kernels left in host memory to a StepResult: no CUDA.
#pragma once

#include <cstdint>
#include <span>

#include "engine/runner.h"
#include "ops/cuda/sampling/draw.h"

namespace quaver {

/// What DeviceSampler::draw() left, in host memory: one entry a logit row of the step. The logprobs may be empty where
/// no row wants any.
struct DrawnRows {
  std::span<const Drawn> drawn;
  std::span<const DrawnLogprobs> sample_logprobs;
  std::span<const DrawnLogprobs> target_logprobs;
};

/// The step's result. A row with a status other than kOk becomes a Failure that says what the CPU sampler would say.
[[nodiscard]] StepResult read_draws(const Step& step, const DrawnRows& rows, int64_t vocab_size);

}  // namespace quaver
