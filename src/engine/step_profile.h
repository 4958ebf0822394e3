// Where the time of a step goes on a GPU (`quaver bench offline --profile`): measured parts beside what they must move
// and compute. The arithmetic is pure; profile_steps() needs a GPU.
#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "engine/runner_options.h"
#include "model/step_cost.h"

namespace quaver {

struct ProfileLoad {
  int64_t decode_sequences = 128;
  int64_t context = 8704;         ///< keys of each of them, the new token included
  int64_t prefill_tokens = 8192;  ///< of one prompt
  bool batch_invariant = false;
  double idle_seconds = 1;  ///< in front of each step's runs: clocks recover from what came before
};

/// One part of a step. Without cost: what the part has to move is nothing that counts (kPrepare).
struct PartProfile {
  StepPart part = StepPart::kPrepare;
  double seconds = 0;
  int64_t launches = 0;  ///< times that the part began
  PartCost cost{};
};

struct StepProfile {
  std::string name;  ///< "decode" or "prefill"
  StepLoad load;
  double step_seconds = 0;           ///< of the step as it is served: a graph for decode; median of kProfileRuns
  double after_idle_seconds = 0;     ///< of the first of those runs
  std::vector<PartProfile> parts{};  ///< from a step launched kernel by kernel with an event in front of each part

  /// step_seconds less the sum of the parts. Negative where launches that overlap hide more than gaps cost.
  [[nodiscard]] double gap_seconds() const;
};

inline constexpr int kProfileRuns = 7;

/// The part that began, and when: an entry for every begin, in order.
using PartMarks = std::vector<std::pair<StepPart, double>>;

/// Adds up marks, each part lasting until the next one begins and the last until `end`; parts in the order of StepPart,
/// those that never began left out.
[[nodiscard]] std::vector<PartProfile> add_up(const PartMarks& marks, double end,
                                              const std::array<PartCost, kNumStepParts>& costs);

/// Loads `directory` onto GPU `gpu` and profiles a decode step and a prefill step. Cached keys and values are those of
/// a real prefill. Throws Error(kUnsupported) in a build without CUDA, and what loading throws.
[[nodiscard]] std::vector<StepProfile> profile_steps(int gpu, const std::filesystem::path& directory,
                                                     const RunnerOptions& options, const ProfileLoad& load);

}  // namespace quaver
