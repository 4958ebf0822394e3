// Steps on one GPU. launch() writes the step's arrays into pinned memory, queues one upload and the kernels, and
// returns; nothing waits before wait(). Decode steps are CUDA graphs by padded batch size, all others are launched one
// kernel at a time. Tokens go from step to step on the device. CUDA builds only.
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "core/cuda.h"
#include "core/device_info.h"
#include "engine/device_sampler.h"
#include "engine/runner.h"
#include "engine/runner_options.h"
#include "engine/step_block.h"
#include "kv_cache/device_kv_cache.h"
#include "model/device_model.h"

namespace quaver {

/// The largest step, and how decode steps run.
struct DeviceRunnerLimits {
  int64_t max_num_seqs = 1;
  int64_t max_model_len = 1;
  int64_t max_query_len = 1;  ///< tokens of one sequence
  int64_t max_tokens = 1;     ///< of a whole step
  bool cuda_graphs = true;
  bool batch_invariant = false;
};

class DeviceRunner final : public Runner {
 public:
  /// Loads the Hugging Face folder `directory` onto GPU `device` and sizes the pool for `engine`. Throws
  /// Error(kInvalidArgument) naming the option, Error(kUnsupported) for what only the CPU does, Error(kOutOfMemory)
  /// with the bytes wanted and free, and what loading a model throws.
  [[nodiscard]] static std::unique_ptr<DeviceRunner> load(const std::filesystem::path& directory,
                                                          const RunnerOptions& options, const EngineOptions& engine,
                                                          int device);

  /// On the current device, which is `device` and holds `weights`. `pool` but for available_bytes, which is what is
  /// free once everything else is allocated. Runs and records decode steps of every size for at most 5 s; sizes that
  /// are left are recorded on their second use.
  DeviceRunner(const DeviceInfo& device, ModelConfig config, DeviceWeights weights, const CachePlan& plan,
               PoolLimits pool, const DeviceRunnerLimits& limits, const RunnerOptions& options = {});
  /// Lets the steps in flight finish.
  ~DeviceRunner() override;
  DeviceRunner(const DeviceRunner&) = delete;
  DeviceRunner& operator=(const DeviceRunner&) = delete;
  DeviceRunner(DeviceRunner&&) = delete;
  DeviceRunner& operator=(DeviceRunner&&) = delete;

  void launch(const Step& step) override;
  [[nodiscard]] StepResult wait() override;

  /// In batch-invariant mode one token alone is a generated one's row.
  /// In batch-invariant mode not: a chunk that ends in front of an image may have a single token, which would get
  /// another kernel than in a longer chunk.
  [[nodiscard]] bool takes_spans() const noexcept override { return !limits_.batch_invariant; }
  [[nodiscard]] int64_t least_chunk() const noexcept override { return limits_.batch_invariant ? 2 : 1; }

  /// launch() without a graph, with `observer` told before each part's first kernel: for profiles.
  void launch_observed(const Step& step, const PartObserver& observer);

  [[nodiscard]] const CachePlan& cache_plan() const noexcept override { return cache_.plan(); }
  [[nodiscard]] int64_t num_pages() const noexcept override { return cache_.num_pages(); }
  [[nodiscard]] int64_t vocab_size() const noexcept override { return model_.config().vocab_size; }
  [[nodiscard]] int64_t max_positions() const noexcept override { return model_.config().max_positions; }
  [[nodiscard]] const DeviceModel& model() const noexcept { return model_; }
  [[nodiscard]] cudaStream_t stream() const noexcept { return stream_.get(); }
  [[nodiscard]] int64_t num_graphs() const noexcept;

 private:
  /// What one step in flight owns; results by logit row.
  struct InFlight {
    PinnedBuffer<std::byte> block;
    PinnedBuffer<Drawn> drawn;
    PinnedBuffer<DrawnLogprobs> sample_logprobs;
    PinnedBuffer<DrawnLogprobs> target_logprobs;
    CudaEvent done;
    const Step* step = nullptr;
    bool with_logprobs = false;
  };
  /// One step as its kernels see it. All pointers are device memory.
  struct DeviceStep {
    DeviceBatch batch;
    int32_t* token_ids = nullptr;
    const int32_t* feedback_slots = nullptr;
    const int32_t* sample_slots = nullptr;
    const int32_t* target_slots = nullptr;
    const int32_t* targets = nullptr;
    bool has_feedback = false;
    DeviceSampler::Extra extra{};
  };
  /// Decode steps of one size that need the same kernels: run once, recorded once, then replayed.
  struct Graph {
    bool ran = false;
    CudaGraphExec executable;
  };
  using GraphKey = std::tuple<int64_t, bool, bool>;  // padded size, cuts, logprobs

  void allocate(PoolLimits pool);
  void warm_up();
  void start(const Step& step, int64_t padded_size, const PartObserver& observer);
  void download(const Step& step, InFlight& slot);
  [[nodiscard]] DeviceStep upload(const Step& step, int64_t padded_size, InFlight& slot);
  void run_kernels(const DeviceStep& step, const PartObserver& observer);
  void run_graph(const DeviceStep& step);
  [[nodiscard]] StepShape largest_shape() const;

  DeviceInfo device_;
  DeviceRunnerLimits limits_;
  std::vector<int64_t> graph_sizes_;
  CudaStream stream_;
  DeviceModel model_;
  DeviceSampler sampler_;
  DeviceBuffer<std::byte> block_;              // the arrays of the step that runs
  std::vector<DeviceBuffer<int32_t>> tables_;  // by cache group: [max_num_seqs, width]
  DeviceBuffer<Drawn> drawn_;                  // of the step that runs, by logit row
  DeviceBuffer<DrawnLogprobs> sample_logprobs_;
  DeviceBuffer<DrawnLogprobs> target_logprobs_;
  DeviceKvCache cache_;
  std::map<GraphKey, Graph> graphs_;
  std::array<InFlight, kMaxInFlight> in_flight_;  // a ring: oldest_ and those behind it
  size_t oldest_ = 0;
  int num_in_flight_ = 0;
};

}  // namespace quaver
