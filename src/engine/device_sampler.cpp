#include "engine/device_sampler.h"

#include <cmath>
#include <limits>
#include <utility>

#include "core/check.h"
#include "ops/cuda/sampling/launch.h"

namespace quaver {
namespace {

constexpr int64_t kMarksAtOnce = 8;

int64_t chunks_of(int64_t vocab_size) {
  return (vocab_size + kChunkTokens - 1) / kChunkTokens;
}

}  // namespace

DeviceSampler::DeviceSampler(int64_t max_slots, int64_t vocab_size, int64_t max_rows)
    : vocab_size_(vocab_size), max_rows_(max_rows) {
  check(vocab_size > 0 && chunks_of(vocab_size) <= sampling::kMostChunks, "vocabulary of ", vocab_size,
        " tokens: expected 1 to ", int64_t{sampling::kMostChunks} * kChunkTokens);
  check(max_slots > 0, "max_slots ", max_slots, ": expected > 0");
  check(max_rows > 0 && max_rows <= std::numeric_limits<uint16_t>::max(), "max_rows ", max_rows, ": expected 1 to ",
        std::numeric_limits<uint16_t>::max());  // a grid's y dimension
  sampling::prepare_kernels();
  host_slots_.resize(static_cast<size_t>(max_slots));
  slots_ = DeviceBuffer<sampling::Slot>(max_slots);
  kept_ = DeviceBuffer<uint64_t>(max_rows);
  chunk_best_ = DeviceBuffer<float>(2 * max_rows * chunks_of(vocab_size));
  chunk_sums_ = DeviceBuffer<uint64_t>(2 * max_rows * chunks_of(vocab_size));
}

int64_t DeviceSampler::bytes(int64_t max_slots, int64_t vocab_size, int64_t max_rows) {
  const auto size = [](auto value) { return static_cast<int64_t>(sizeof value); };
  return max_slots * size(sampling::Slot{}) + max_rows * size(uint64_t{}) +
         2 * max_rows * chunks_of(vocab_size) * (size(float{}) + size(uint64_t{}));
}

int64_t DeviceSampler::mark_bytes(int64_t vocab_size) {
  return sampling::mark_count(vocab_size) * static_cast<int64_t>(sizeof(uint16_t));
}

DeviceSampler::HostSlot& DeviceSampler::host_slot(int32_t slot) {
  check(slot >= 0 && std::cmp_less(slot, host_slots_.size()), "slot ", slot, ": expected 0 to ",
        std::ssize(host_slots_) - 1);
  return host_slots_[static_cast<size_t>(slot)];
}

uint16_t* DeviceSampler::borrow_marks() {
  const int64_t count = sampling::mark_count(vocab_size_);
  if (free_marks_.empty()) {
    mark_blocks_.emplace_back(kMarksAtOnce * count);
    for (int64_t i = 0; i < kMarksAtOnce; ++i) free_marks_.push_back(mark_blocks_.back().data() + i * count);
  }
  uint16_t* marks = free_marks_.back();
  free_marks_.pop_back();
  return marks;
}

void DeviceSampler::start(const Step::SlotStart& start, cudaStream_t stream) {
  HostSlot& host = host_slot(start.slot);
  sampling::SlotSetup setup =
      sampling::set_up_slot(start.params, start.stop_token_ids, start.tokens, start.prompt_len, vocab_size_);
  const bool needs_marks = sampling::uses_marks(setup.slot);
  if (needs_marks && host.marks == nullptr) host.marks = borrow_marks();
  if (!needs_marks && host.marks != nullptr) free_marks_.push_back(std::exchange(host.marks, nullptr));
  if (host.biases.size() < setup.slot.num_biases) host.biases = DeviceBuffer<TokenLogit>(setup.slot.num_biases);
  host.cuts = setup.slot.rule.cuts;
  host.logprobs = setup.slot.logprobs >= 0;
  setup.slot.marks = host.marks;
  setup.slot.biases = host.biases.data();
  if (needs_marks) {
    const auto bytes = static_cast<size_t>(mark_bytes(vocab_size_));
    check_cuda(cudaMemsetAsync(host.marks, 0, bytes, stream), "cudaMemsetAsync");
    sampling::launch_marks(host.marks, setup.marks, stream);
    sampling::launch_biases(host.biases.data(), setup.biases, stream);
  }
  sampling::launch_start(slots_.data() + start.slot, setup.slot, stream);
}

DeviceSampler::Extra DeviceSampler::extra(const Step& step) const {
  Extra extra{.cuts = false, .logprobs = !step.prompt_logprobs.empty()};
  for (const Step::Sample& sample : step.samples) {
    const HostSlot& slot = host_slots_.at(static_cast<size_t>(sample.slot));
    extra.cuts |= slot.cuts;
    extra.logprobs |= slot.logprobs;
  }
  return extra;
}

void DeviceSampler::fill_feedback(const int32_t* slots, int64_t count, int32_t* token_ids, cudaStream_t stream) const {
  if (count > 0) sampling::launch_feedback(slots_.data(), slots, count, token_ids, stream);
}

void DeviceSampler::draw(const Rows& rows, cudaStream_t stream) {
  check(rows.count >= 0 && rows.count <= max_rows_, "rows ", rows.count, ": expected 0 to ", max_rows_);
  check(rows.stride >= vocab_size_, "stride ", rows.stride, ": expected at least the vocabulary of ", vocab_size_);
  if (rows.count == 0) return;
  const int64_t chunks = chunks_of(vocab_size_);
  const int64_t model_chunks = max_rows_ * chunks;  // behind those of the drawn logits
  const bool by_fours = reinterpret_cast<uintptr_t>(rows.logits) % 16 == 0 && rows.stride % 4 == 0;
  const sampling::Parameters p{
      .logits = rows.logits,
      .stride = rows.stride,
      .vocab = static_cast<int32_t>(vocab_size_),
      .chunks = static_cast<int32_t>(chunks),
      .by_fours = by_fours,
      .logprobs = rows.extra.logprobs,
      .softcap = make_softcap(rows.softcap),
      .sample_slots = rows.sample_slots,
      .target_slots = rows.target_slots,
      .targets = rows.targets,
      .slots = slots_.data(),
      .kept = kept_.data(),
      .drawn_chunks = {.best = chunk_best_.data(), .sums = chunk_sums_.data()},
      .model_chunks = {.best = chunk_best_.data() + model_chunks, .sums = chunk_sums_.data() + model_chunks},
      .drawn = rows.drawn,
      .sample_logprobs = rows.sample_logprobs,
      .target_logprobs = rows.target_logprobs};
  sampling::launch_draw(p, rows.count, rows.extra.cuts, stream);
}

}  // namespace quaver
