// Tokens from logits in GPU memory: engine/sampler.h on the device. What sampling needs to know of a request's past
// stays in device memory, per slot; tokens go from step to step without the host.
//
// Order of a step on one stream: start() of new slots → fill_feedback() → forward pass → draw() → copy of the results
// to pinned memory. No function waits for the device, except start() where it needs memory that no slot before it
// needed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/cuda.h"
#include "engine/runner.h"
#include "ops/cuda/sampling/draw.h"
#include "ops/cuda/sampling/slot.h"

namespace quaver {

/// The draws of a step by ascending logit row, and where their results belong.
struct DrawList {
  std::vector<Draw> draws;
  /// Index into Step::samples, or into Step::prompt_logprobs where the draw has a target.
  std::vector<int32_t> entries;
};
[[nodiscard]] DrawList list_draws(const Step& step);

/// The step's result; `drawn` and `logprobs` (empty where no draw wants any) are in host memory, one per draw.
[[nodiscard]] StepResult read_draws(const Step& step, const DrawList& list, std::span<const Drawn> drawn,
                                    std::span<const DrawnLogprobs> logprobs);

class DeviceSampler {
 public:
  /// Kernels that a list of draws needs beyond greedy, temperature, bias, penalties and min_tokens. One set of launches
  /// for each value, so a graph is recorded for one of them.
  struct Extra {
    bool cuts = false;      ///< a slot has top-k, top-p or min-p
    bool logprobs = false;  ///< a draw has a target or its slot wants log-probabilities
    friend bool operator==(const Extra&, const Extra&) = default;
  };

  /// On the current device. `max_draws`: of one draw(). Throws Error(kInvalidArgument) for a vocabulary of more than
  /// 2^20 tokens and Error(kOutOfMemory).
  DeviceSampler(int64_t max_slots, int64_t vocab_size, int64_t max_draws);

  /// Device memory that the constructor takes. A slot with penalties, bias or min_tokens takes mark_bytes() more while
  /// it has them; that memory is kept for later slots.
  [[nodiscard]] static int64_t bytes(int64_t max_slots, int64_t vocab_size, int64_t max_draws);
  [[nodiscard]] static int64_t mark_bytes(int64_t vocab_size);

  /// Gives a slot to a request; what the slot's last owner left is forgotten.
  void start(const Step::SlotStart& start, cudaStream_t stream);

  /// What draw() must be told of these draws.
  [[nodiscard]] Extra extra(std::span<const Draw> draws) const;

  /// token_ids[feedback.row] = the token that feedback.slot drew last, or the last it started with. `feedback` and
  /// `token_ids` are in device memory; entries of slot -1 are padding.
  void fill_feedback(const Step::Feedback* feedback, int64_t count, int32_t* token_ids, cudaStream_t stream) const;

  struct Args {
    const float* logits = nullptr;  ///< [rows, vocab], 4-byte aligned; 16-byte rows are read faster
    int64_t row_stride = 0;         ///< elements
    int64_t first_row = 0;          ///< the logit row that `logits` begins with
    double softcap = 0;             ///< final_logit_softcapping of the model; 0: none
    const Draw* draws = nullptr;    ///< [num_draws] in device memory; a slot appears in one draw without target at most
    int64_t num_draws = 0;          ///< padding included; the launches depend on this number and `extra` only
    Extra extra{};
    Drawn* drawn = nullptr;             ///< [num_draws], device or pinned memory; padding is not written
    DrawnLogprobs* logprobs = nullptr;  ///< likewise with extra.logprobs; only draws that want some are written
  };
  /// Bias → penalties → min_tokens → temperature → top-k → top-p → min-p → draw from (seed, position), as
  /// Sampler::draw() on the same logits, bit for bit. No allocation, no synchronisation; graph-safe. Rows do not
  /// influence each other. A draw whose status is not kOk leaves its slot unchanged.
  void draw(const Args& args, cudaStream_t stream);

 private:
  struct HostSlot {
    bool cuts = false;
    bool logprobs = false;
    uint16_t* marks = nullptr;        // borrowed from mark_blocks_
    DeviceBuffer<TokenLogit> biases;  // grows with need
  };
  [[nodiscard]] uint16_t* borrow_marks();

  int64_t vocab_size_;
  int64_t max_draws_;
  std::vector<HostSlot> host_slots_;
  std::vector<DeviceBuffer<uint16_t>> mark_blocks_;
  std::vector<uint16_t*> free_marks_;
  DeviceBuffer<sampling::Slot> slots_;
  DeviceBuffer<float> chunk_best_;
  DeviceBuffer<uint64_t> chunk_sums_;
  DeviceBuffer<sampling::Kept> kept_;
};

}  // namespace quaver
