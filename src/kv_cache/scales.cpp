#include "kv_cache/scales.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/e4m3.h"

namespace quaver {

bool is_scale(float value) noexcept {
  return value > 0.0F && std::isnormal(value) && std::isnormal(1.0F / value);
}

void check_scale(std::string_view name, float value) {
  check(is_scale(value), name, " ", value, ": expected a positive finite scale between 2^-126 and 2^126");
}

float scale_for_bound(double bound) {
  check(bound >= 0.0 && std::isfinite(bound), "bound of cached values ", bound, ": expected a finite number >= 0");
  if (bound == 0.0) return 1.0F;
  int exponent = 0;
  const double mantissa = std::frexp(bound / static_cast<double>(kE4M3Max), &exponent);  // in [0.5, 1)
  if (mantissa == 0.5) --exponent;
  return std::ldexp(1.0F, std::clamp(exponent, -126, 126));
}

float derived_k_scale(std::span<const float> k_norm_multipliers) {
  check(!k_norm_multipliers.empty(), "k_norm multipliers []: expected one a head dim");
  double largest = 0.0;
  for (const float multiplier : k_norm_multipliers) {
    check(std::isfinite(multiplier), "k_norm multiplier ", multiplier, ": expected a finite number");
    largest = std::max(largest, std::abs(static_cast<double>(multiplier)));
  }
  return scale_for_bound(std::sqrt(static_cast<double>(k_norm_multipliers.size())) * largest);
}

float derived_v_scale(int head_dim) {
  check(head_dim > 0, "head dim ", head_dim, ": expected at least 1");
  return scale_for_bound(std::sqrt(static_cast<double>(head_dim)));
}

}  // namespace quaver
