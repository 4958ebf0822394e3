// RMS normalisation, with the residual sum that follows it in Gemma (gemma.md 1.1; transformers Gemma3RMSNorm).
#pragma once

#include <cstdint>
#include <span>

namespace quaver {

/// out[r] = x[r] * rsqrt(mean(x[r]^2) + eps) * weight for rows of `dim` values; an empty weight is 1 everywhere
/// (Gemma 4 v_norm). `out` may be `x`. The order of the sum depends on `dim` alone.
void rms_norm(const float* x, int64_t num_rows, int64_t dim, std::span<const float> weight, double eps, float* out);

/// residual[r] += rms_norm(x)[r].
void rms_norm_add(const float* x, int64_t num_rows, int64_t dim, std::span<const float> weight, double eps,
                  float* residual);

}  // namespace quaver
