#include "engine/step_profile.h"

#include "core/check.h"

namespace quaver {

double StepProfile::gap_seconds() const {
  double parts_seconds = 0;
  for (const PartProfile& part : parts) parts_seconds += part.seconds;
  return step_seconds - parts_seconds;
}

std::vector<PartProfile> add_up(const PartMarks& marks, double end, const std::array<PartCost, kNumStepParts>& costs) {
  std::array<PartProfile, kNumStepParts> sums{};
  for (size_t i = 0; i < marks.size(); ++i) {
    const auto& [part, begin] = marks[i];
    const double until = i + 1 < marks.size() ? marks[i + 1].second : end;
    check_as(ErrorKind::kInternal, until >= begin, "part ", part_name(part), " from ", begin, " to ", until,
             ": expected times that ascend");
    PartProfile& sum = sums.at(static_cast<size_t>(part));
    sum.seconds += until - begin;
    ++sum.launches;
  }
  std::vector<PartProfile> parts;
  for (size_t i = 0; i < sums.size(); ++i) {
    if (sums[i].launches == 0) continue;
    sums[i].part = static_cast<StepPart>(i);
    sums[i].cost = costs[i];
    parts.push_back(sums[i]);
  }
  return parts;
}

}  // namespace quaver
