// Static scales of an FP8 cache: stored = real / scale.
#pragma once

#include <span>
#include <string_view>

namespace quaver {

/// True for a scale that a cache can have: it and its inverse are positive, finite, normal floats (2^-126 … 2^126).
[[nodiscard]] bool is_scale(float value) noexcept;

/// Throws Error(kInvalidArgument) naming the scale and its value unless is_scale().
void check_scale(std::string_view name, float value);

/// Smallest power of two s with bound / s <= 448, the largest E4M3 value: nothing up to the bound can clip, and a power
/// of two adds no rounding of its own. 1.0 for bound 0. Throws Error(kInvalidArgument) for a negative or non-finite
/// bound.
[[nodiscard]] float scale_for_bound(double bound);

/// Scale of K after RMS norm and RoPE. The normed vector has Euclidean length <= sqrt(D), so |k| <= sqrt(D) * max
/// |multiplier|, and RoPE, which turns pairs, keeps that bound. `k_norm_multipliers` [D]: what the normed values are
/// multiplied with (1 + weight in Gemma 3, weight in Gemma 4).
[[nodiscard]] float derived_k_scale(std::span<const float> k_norm_multipliers);

/// Scale of V where V is RMS-normed without a weight (Gemma 4): |v| <= sqrt(D).
[[nodiscard]] float derived_v_scale(int head_dim);

}  // namespace quaver
