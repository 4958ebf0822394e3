// How far is attention over the paged cache from float64 attention, on a real generation? Hook observe() into
// Generator::set_observer() and read errors() afterwards.
#pragma once

#include <cstdint>
#include <vector>

#include "model/cpu_model.h"

namespace quaver {

/// Relative L2 errors |a - e| / |e| of attention outputs, over all layers and measured rows together.
struct AttentionErrors {
  double same_cache = 0;   ///< against float64 attention over the K and V that the cache holds: arithmetic alone
  double exact_cache = 0;  ///< against float64 attention over K and V before they were stored: storage as well
  int64_t rows = 0;        ///< measured rows, all query heads of one token in one layer each
};

/// Keeps the K and V of one sequence as the model computed them, and measures the last row of steps. A step that starts
/// at position 0 starts the sequence anew. The model must outlive the probe.
class AttentionProbe {
 public:
  /// Measures every `interval`-th step: float64 attention over all layers costs as much as a decode step.
  explicit AttentionProbe(const CpuModel& model, int64_t interval = 1);

  /// Throws Error(kInvalidArgument) for a batch of several sequences.
  void observe(const LayerObservation& seen);

  [[nodiscard]] AttentionErrors errors() const;

 private:
  struct History {
    std::vector<float> k, v;  // [tokens so far, Hkv, D]
    int64_t steps = 0;
  };
  struct Sum {
    double error = 0;   // squared
    double square = 0;  // of the reference
  };
  void measure(const LayerObservation& seen, const History& history);

  const CpuModel& model_;
  int64_t interval_;
  std::vector<History> layers_;
  Sum same_cache_, exact_cache_;
  int64_t rows_ = 0;
};

}  // namespace quaver
