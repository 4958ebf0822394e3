#include "engine/device_runner.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "core/check.h"
#include "engine/block_tables.h"
#include "engine/read_draws.h"
#include "kv_cache/device_cache.h"

namespace quaver {
namespace {

/// Logits of so many rows exist at once: 268 MB for Gemma's vocabulary.
constexpr int64_t kLogitRows = 256;
constexpr std::chrono::seconds kWarmUpTime{5};

int64_t table_width(const CacheGroup& group, int64_t max_model_len) {
  return (max_model_len + group.layout.page_size - 1) / group.layout.page_size;
}

DeviceModelOptions model_options(const DeviceRunnerLimits& limits, const RunnerOptions& options) {
  return {.workspace = {.max_tokens = limits.max_tokens,
                        .max_sequences = limits.max_num_seqs,
                        .max_logit_rows = std::min(kLogitRows, limits.max_tokens)},
          .max_query_len = limits.max_query_len,
          .batch_invariant = limits.batch_invariant,
          .max_model_len = limits.max_model_len,
          .attention_precision = options.attention_precision,
          .attention_kernel = options.attention_kernel};
}

int64_t free_bytes() {
  size_t free = 0;
  size_t total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<int64_t>(free);
}

template <class T>
T* at(std::byte* block, int64_t offset) {
  return reinterpret_cast<T*>(block + offset);
}

}  // namespace

std::unique_ptr<DeviceRunner> DeviceRunner::load(const std::filesystem::path& directory, const RunnerOptions& options,
                                                 const EngineOptions& engine, int device) {
  ServingPlan plan = plan_serving(directory, options, engine);
  check_cuda(cudaSetDevice(device), "cudaSetDevice");
  const DeviceInfo info = query_device(device);
  const CudaStream stream = make_stream();
  const auto order = engine.batch_invariant ? packed_fp8::SumOrder::kFixed : packed_fp8::SumOrder::kAny;
  DeviceWeights weights = options.dummy_seed
                              ? dummy_device_weights(plan.config, *options.dummy_seed, stream.get(), order)
                              : load_device_weights(directory, plan.config, options.kv_scales, stream.get(), order);
  const DeviceRunnerLimits limits{.max_num_seqs = engine.max_num_seqs,
                                  .max_model_len = plan.max_model_len,
                                  .max_query_len = plan.max_query_len,
                                  .max_tokens = engine.max_num_batched_tokens + engine.max_num_seqs,
                                  .cuda_graphs = options.cuda_graphs,
                                  .batch_invariant = engine.batch_invariant};
  return std::make_unique<DeviceRunner>(info, std::move(plan.config), std::move(weights), plan.cache, plan.pool, limits,
                                        options);
}

DeviceRunner::DeviceRunner(const DeviceInfo& device, ModelConfig config, DeviceWeights weights, const CachePlan& plan,
                           PoolLimits pool, const DeviceRunnerLimits& limits, const RunnerOptions& options)
    : device_(device),
      limits_(limits),
      graph_sizes_(limits.cuda_graphs ? decode_graph_sizes(limits.max_num_seqs) : std::vector<int64_t>{}),
      stream_(make_stream()),
      model_(std::move(config), std::move(weights), plan, device, model_options(limits, options)),
      sampler_(limits.max_num_seqs, model_.config().vocab_size, model_.max_logit_rows()),
      cache_(plan, 0, device.index) {
  allocate(pool);
  warm_up();
}

DeviceRunner::~DeviceRunner() {
  static_cast<void>(cudaSetDevice(device_.index));
  static_cast<void>(cudaStreamSynchronize(stream_.get()));  // what failed has been told by wait()
}

StepShape DeviceRunner::largest_shape() const {
  StepShape shape{.num_tokens = limits_.max_tokens,
                  .num_sequences = limits_.max_num_seqs,
                  .num_logit_rows = limits_.max_tokens,
                  .spans = takes_spans(),
                  .table_columns = {}};
  for (const CacheGroup& group : cache_.plan().groups) {
    shape.table_columns.push_back(table_width(group, limits_.max_model_len));
  }
  return shape;
}

/// Everything else first: the pool gets its share of what is left.
void DeviceRunner::allocate(PoolLimits pool) {
  const CachePlan plan = cache_.plan();
  const StepShape largest = largest_shape();
  const int64_t block_bytes = step_layout(largest).bytes;
  block_ = DeviceBuffer<std::byte>(block_bytes);
  for (const int64_t width : largest.table_columns) tables_.emplace_back(limits_.max_num_seqs * width);
  drawn_ = DeviceBuffer<Drawn>(largest.num_logit_rows);
  sample_logprobs_ = DeviceBuffer<DrawnLogprobs>(largest.num_logit_rows);
  target_logprobs_ = DeviceBuffer<DrawnLogprobs>(largest.num_logit_rows);
  for (InFlight& slot : in_flight_) {
    slot.block = PinnedBuffer<std::byte>(block_bytes);
    slot.drawn = PinnedBuffer<Drawn>(largest.num_logit_rows);
    slot.sample_logprobs = PinnedBuffer<DrawnLogprobs>(largest.num_logit_rows);
    slot.target_logprobs = PinnedBuffer<DrawnLogprobs>(largest.num_logit_rows);
    slot.done = make_event();
  }
  pool.available_bytes = free_bytes();
  const int64_t num_pages = pool_pages(plan, pool);
  check_as(ErrorKind::kOutOfMemory, num_pages * plan.block_bytes() <= pool.available_bytes, "KV cache of ",
           num_pages * plan.block_bytes(), " bytes: expected at most the ", pool.available_bytes,
           " free on cuda:", device_.index, " beside ", model_.weights().bytes, " bytes of weights and the workspace");
  cache_ = DeviceKvCache(plan, num_pages, device_.index);
}

/// Loads the kernels of decode steps and records the graphs: steps of nothing but padding, each twice.
void DeviceRunner::warm_up() {
  Step padding;
  padding.batch.query_start = {0};
  padding.batch.groups.resize(cache_.plan().groups.size());
  const auto end = std::chrono::steady_clock::now() + kWarmUpTime;
  for (const int64_t size : graph_sizes_) {
    if (std::chrono::steady_clock::now() > end) return;
    for (int use = 0; use < 2; ++use) {
      start(padding, size, {});
      static_cast<void>(wait());
    }
  }
}

int64_t DeviceRunner::num_graphs() const noexcept {
  return std::ranges::count_if(graphs_, [](const auto& entry) { return entry.second.executable.get() != nullptr; });
}

void DeviceRunner::launch(const Step& step) {
  start(step, is_decode_step(step) ? padded_size(graph_sizes_, step.batch.num_sequences()) : 0, {});
}

void DeviceRunner::launch_observed(const Step& step, const PartObserver& observer) {
  start(step, 0, observer);
}

void DeviceRunner::start(const Step& step, int64_t padded_size, const PartObserver& observer) {
  check_as(ErrorKind::kInternal, num_in_flight_ < kMaxInFlight, "steps in flight ", num_in_flight_ + 1,
           ": expected at most ", kMaxInFlight);
  check_cuda(cudaSetDevice(device_.index), "cudaSetDevice");  // of this thread
  InFlight& slot = in_flight_[(oldest_ + static_cast<size_t>(num_in_flight_)) % kMaxInFlight];
  try {
    const DeviceStep device_step = upload(step, padded_size, slot);
    if (padded_size > 0) {
      run_graph(device_step);
    } else {
      run_kernels(device_step, observer);
    }
    slot.with_logprobs = device_step.extra.logprobs;
    download(step, slot);
    check_cuda(cudaEventRecord(slot.done.get(), stream_.get()), "cudaEventRecord");
  } catch (...) {  // the slot is used again: nothing may still read it
    static_cast<void>(cudaStreamSynchronize(stream_.get()));
    throw;
  }
  slot.step = &step;
  ++num_in_flight_;
}

void DeviceRunner::download(const Step& step, InFlight& slot) {
  const auto rows = static_cast<size_t>(step.batch.logit_rows.size());
  if (rows == 0) return;
  const auto copy = [&](auto& to, const auto& from) {
    check_cuda(
        cudaMemcpyAsync(to.data(), from.data(), rows * sizeof(*from.data()), cudaMemcpyDeviceToHost, stream_.get()),
        "cudaMemcpyAsync");
  };
  copy(slot.drawn, drawn_);
  if (!slot.with_logprobs) return;
  copy(slot.sample_logprobs, sample_logprobs_);
  copy(slot.target_logprobs, target_logprobs_);
}

/// The step's arrays and whatever differs from step to step: all that a graph does not know.
DeviceRunner::DeviceStep DeviceRunner::upload(const Step& step, int64_t padded_size, InFlight& slot) {
  const CachePlan& plan = cache_.plan();
  StepShape shape = step_shape(step, plan, padded_size);
  // Their attention in the last layer is the decode kernel's, which a row must not get for what others ask for.
  if (limits_.batch_invariant) shape.last_tokens_only = false;
  const StepLayout layout = step_layout(shape);
  check_as(ErrorKind::kInternal,
           layout.bytes <= slot.block.size() && shape.num_sequences <= limits_.max_num_seqs &&
               shape.num_logit_rows <= drawn_.size(),
           "step of ", shape.num_tokens, " tokens and ", shape.num_sequences, " sequences: expected at most ",
           limits_.max_tokens, " and ", limits_.max_num_seqs);
  write_step(step, plan, shape, layout, {slot.block.data(), static_cast<size_t>(layout.bytes)});
  for (const Step::SlotStart& start : step.starts) sampler_.start(start, stream_.get());
  copy_pages(cache_.slabs(), step.page_copies, stream_.get());
  check_cuda(cudaMemcpyAsync(block_.data(), slot.block.data(), static_cast<size_t>(layout.bytes),
                             cudaMemcpyHostToDevice, stream_.get()),
             "cudaMemcpyAsync");

  std::byte* const block = block_.data();
  DeviceStep result{.batch = {.num_tokens = shape.num_tokens,
                              .num_sequences = shape.num_sequences,
                              .num_logit_rows = shape.num_logit_rows,
                              .one_token_each = shape.num_tokens == shape.num_sequences,
                              .older_keys_exist = step.starts.empty(),
                              .last_tokens_only = shape.last_tokens_only,
                              .token_ids = at<int32_t>(block, layout.token_ids),
                              .positions = at<int32_t>(block, layout.positions),
                              .query_start = at<int32_t>(block, layout.query_start),
                              .seq_lens = at<int32_t>(block, layout.seq_lens),
                              .logit_rows = at<int32_t>(block, layout.logit_rows),
                              .span_ids = shape.spans ? at<int32_t>(block, layout.span_ids) : nullptr,
                              .groups = {}},
                    .token_ids = at<int32_t>(block, layout.token_ids),
                    .feedback_slots = at<int32_t>(block, layout.feedback_slots),
                    .sample_slots = at<int32_t>(block, layout.sample_slots),
                    .target_slots = at<int32_t>(block, layout.target_slots),
                    .targets = at<int32_t>(block, layout.targets),
                    .has_feedback = padded_size > 0 || !step.feedback.empty(),
                    .extra = sampler_.extra(step)};
  std::vector<TableUpdate> updates;
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const StepLayout::Group& group = layout.groups[g];
    const int64_t width = table_width(plan.groups[g], limits_.max_model_len);
    result.batch.groups.push_back(
        {.block_table = tables_[g].data(), .max_pages = width, .slots = at<int64_t>(block, group.slots)});
    updates.push_back({.pages = at<int32_t>(block, group.table),
                       .first_columns = at<int32_t>(block, group.first_columns),
                       .num_columns = static_cast<int32_t>(shape.table_columns[g]),
                       .table = tables_[g].data(),
                       .table_width = width});
  }
  write_tables(updates, shape.num_sequences, stream_.get());
  return result;
}

void DeviceRunner::run_kernels(const DeviceStep& step, const PartObserver& observer) {
  const auto begin = [&](StepPart part) {
    if (observer) observer(part);
  };
  begin(StepPart::kPrepare);
  if (step.has_feedback) {
    sampler_.fill_feedback(step.feedback_slots, step.batch.num_tokens, step.token_ids, stream_.get());
  }
  model_.forward(step.batch, cache_, stream_.get(), observer);
  for (int64_t row = 0; row < step.batch.num_logit_rows; row += model_.max_logit_rows()) {
    const int64_t count = std::min(model_.max_logit_rows(), step.batch.num_logit_rows - row);
    begin(StepPart::kLmHead);
    const float* const logits = model_.logits(step.batch, row, count, stream_.get());
    begin(StepPart::kSampling);
    sampler_.draw({.count = count,
                   .logits = logits,
                   .stride = vocab_size(),
                   .softcap = model_.config().final_softcap,
                   .sample_slots = step.sample_slots + row,
                   .target_slots = step.target_slots + row,
                   .targets = step.targets + row,
                   .extra = step.extra,
                   .drawn = drawn_.data() + row,
                   .sample_logprobs = sample_logprobs_.data() + row,
                   .target_logprobs = target_logprobs_.data() + row},
                  stream_.get());
  }
}

void DeviceRunner::run_graph(const DeviceStep& step) {
  Graph& graph = graphs_[{step.batch.num_sequences, step.extra.cuts, step.extra.logprobs}];
  if (!graph.ran) {  // kernels are loaded when they first run, which recording cannot do
    run_kernels(step, {});
    graph.ran = true;
    return;
  }
  if (graph.executable.get() == nullptr) {
    graph.executable = capture_graph(stream_.get(), [&](cudaStream_t /*stream*/) { run_kernels(step, {}); });
  }
  check_cuda(cudaGraphLaunch(graph.executable.get(), stream_.get()), "cudaGraphLaunch");
}

StepResult DeviceRunner::wait() {
  check_as(ErrorKind::kInternal, num_in_flight_ > 0, "steps in flight 0: expected one to wait for");
  const InFlight& slot = in_flight_[oldest_];
  oldest_ = (oldest_ + 1) % kMaxInFlight;
  --num_in_flight_;
  check_cuda(cudaSetDevice(device_.index), "cudaSetDevice");
  check_cuda(cudaEventSynchronize(slot.done.get()), "cudaEventSynchronize");
  const Step& step = *slot.step;
  const size_t rows = step.batch.logit_rows.size();
  const size_t logprobs = slot.with_logprobs ? rows : 0;
  return read_draws(step,
                    {.drawn = {slot.drawn.data(), rows},
                     .sample_logprobs = {slot.sample_logprobs.data(), logprobs},
                     .target_logprobs = {slot.target_logprobs.data(), logprobs}},
                    vocab_size());
}

}  // namespace quaver
