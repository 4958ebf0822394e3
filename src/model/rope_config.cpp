#include "model/rope_config.h"

#include <cmath>

#include "core/check.h"

namespace quaver {
namespace {

constexpr Range<double> kThetaRange{.low = 1.0, .high = 1e12};
constexpr Range<double> kFactorRange{.low = 1e-3, .high = 1e6};

/// Fills factor and proportion from an object with `rope_type` (older: `type`).
void read_scaling(const Fields& fields, RopeConfig& rope) {
  const std::string type = fields.string("rope_type", fields.string("type", "default"));
  check_as(ErrorKind::kUnsupported, type == "default" || type == "linear" || type == "proportional",
           fields.path("rope_type"), " ", printable(type), ": expected default, linear or proportional");
  if (type == "linear") rope.factor = fields.number("factor", kFactorRange);
  if (type == "proportional") rope.factor = fields.number("factor", kFactorRange, 1.0);
  const double proportion = fields.number("partial_rotary_factor", {.low = 0.0, .high = 1.0}, 1.0);
  check_as(ErrorKind::kUnsupported, proportion == 1.0 || type == "proportional", fields.path("partial_rotary_factor"),
           " ", proportion, " with rope type ", type, ": expected 1, or rope type proportional");
  rope.proportion = proportion;
}

}  // namespace

int RopeConfig::rotary_pairs(int head_dim) const {
  return static_cast<int>(std::floor(proportion * head_dim / 2));
}

RopeConfig read_rope(const Fields& text, ModelFamily family, bool sliding) {
  const std::string_view kind = sliding ? "sliding_attention" : "full_attention";
  const bool gemma3 = family == ModelFamily::kGemma3;
  RopeConfig rope{.theta = sliding ? 1e4 : 1e6};
  const auto parameters = text.object("rope_parameters");
  const auto entry = parameters ? parameters->object(kind) : std::nullopt;
  check(entry || !parameters || gemma3, text.path("rope_parameters"), ": expected an entry ", kind);
  if (entry) read_scaling(*entry, rope);
  if (gemma3) {
    const auto scaling = text.object("rope_scaling");
    if (!sliding && scaling) read_scaling(*scaling, rope);
    rope.theta = text.number(sliding ? "rope_local_base_freq" : "rope_theta", kThetaRange, rope.theta);
  } else if (!parameters && !sliding) {
    rope.proportion = 0.25;  // Gemma4TextConfig's default for full layers
  }
  if (entry) rope.theta = entry->number("rope_theta", kThetaRange, gemma3 ? std::optional(rope.theta) : std::nullopt);
  return rope;
}

}  // namespace quaver
