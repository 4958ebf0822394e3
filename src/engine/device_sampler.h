// Tokens from logits in GPU memory: engine/sampler.h on the device. What sampling needs to know of a request's past
// stays in device memory, per slot; tokens go from step to step without the host.
//
// A step on one stream: start() of its new slots → fill_feedback() → forward pass → draw() for its logit rows, piece by
// piece → copies of the results to pinned memory → an event, after which read_draws() makes them a StepResult. No
// function waits for the device, except start() where a slot needs memory that no slot before it needed.
#pragma once

#include <cstdint>
#include <vector>

#include "core/cuda.h"
#include "engine/runner.h"
#include "ops/cuda/sampling/draw.h"
#include "ops/cuda/sampling/slot.h"

namespace quaver {

class DeviceSampler {
 public:
  /// Kernels that rows need beyond greedy, temperature, bias, penalties and min_tokens: what a graph records depends on
  /// it. Kernels for more than a step needs do no harm, they return at once.
  struct Extra {
    bool cuts = false;      ///< some row's slot has top-k, top-p or min-p
    bool logprobs = false;  ///< some row has a target, or its slot wants log-probabilities
    friend bool operator==(const Extra&, const Extra&) = default;
  };

  /// On the current device. `max_rows`: of one draw(). Throws Error(kInvalidArgument) for a vocabulary of more than
  /// 2^20 tokens and Error(kOutOfMemory).
  DeviceSampler(int64_t max_slots, int64_t vocab_size, int64_t max_rows);

  /// Device memory that the constructor takes. A slot with penalties, bias or min_tokens borrows mark_bytes() more;
  /// those are allocated 8 at a time when they are first needed, and kept.
  [[nodiscard]] static int64_t bytes(int64_t max_slots, int64_t vocab_size, int64_t max_rows);
  [[nodiscard]] static int64_t mark_bytes(int64_t vocab_size);

  /// Gives a slot to a request; what the slot's last owner left is forgotten. The tokens are read before it returns.
  void start(const Step::SlotStart& start, cudaStream_t stream);

  /// What draw() must be told of a step whose slots have been started.
  [[nodiscard]] Extra extra(const Step& step) const;

  /// token_ids[i] = the token that slots[i] drew last, or the last that it started with; nothing where slots[i] is -1.
  /// Both [count] in device memory.
  void fill_feedback(const int32_t* slots, int64_t count, int32_t* token_ids, cudaStream_t stream) const;

  /// Some consecutive logit rows of a step. All pointers are to device memory (the results' may be to pinned memory)
  /// and to the entry of the first of these rows.
  struct Rows {
    int64_t count = 0;                      ///< at most max_rows; the launches depend on it and on `extra` only
    const float* logits = nullptr;          ///< [count, vocab] as the LM head left them
    int64_t stride = 0;                     ///< elements from row to row; multiples of 4 are read faster
    double softcap = 0;                     ///< the model's final_logit_softcapping; 0: none
    const int32_t* sample_slots = nullptr;  ///< [count]: slot that draws a token; -1: none. Each slot once in a step
    const int32_t* target_slots = nullptr;  ///< [count]: slot that asks for the probability of `targets`; -1: none
    const int32_t* targets = nullptr;       ///< [count]; these two are read with extra.logprobs only
    Extra extra{};
    Drawn* drawn = nullptr;                    ///< [count]; rows without a draw are not written
    DrawnLogprobs* sample_logprobs = nullptr;  ///< [count] with extra.logprobs; rows that want none are not written
    DrawnLogprobs* target_logprobs = nullptr;  ///< likewise
  };
  /// Final softcap → bias → penalties → min_tokens → temperature → top-k → top-p → min-p → draw from (seed, position):
  /// softcap() and Sampler::draw() on the same logits, bit for bit. No allocation, no synchronisation; graph-safe. Rows
  /// do not influence each other. A row whose status is not kOk leaves its slot's past as it was.
  void draw(const Rows& rows, cudaStream_t stream);

 private:
  struct HostSlot {
    bool cuts = false;
    bool logprobs = false;
    uint16_t* marks = nullptr;        // of mark_blocks_
    DeviceBuffer<TokenLogit> biases;  // as large as was ever needed
  };
  [[nodiscard]] HostSlot& host_slot(int32_t slot);
  [[nodiscard]] uint16_t* borrow_marks();

  int64_t vocab_size_;
  int64_t max_rows_;
  std::vector<HostSlot> host_slots_;
  std::vector<DeviceBuffer<uint16_t>> mark_blocks_;
  std::vector<uint16_t*> free_marks_;
  DeviceBuffer<sampling::Slot> slots_;
  DeviceBuffer<uint64_t> kept_;
  DeviceBuffer<float> chunk_best_;
  DeviceBuffer<uint64_t> chunk_sums_;
};

}  // namespace quaver
