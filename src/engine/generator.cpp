#include "engine/generator.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "engine/sampler.h"

namespace quaver {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Gives the pages of a sequence back however the call ends.
class ScopedSequence {
 public:
  explicit ScopedSequence(KvManager& manager) : manager_(manager) {}
  ~ScopedSequence() { manager_.release(pages_); }
  ScopedSequence(const ScopedSequence&) = delete;
  ScopedSequence& operator=(const ScopedSequence&) = delete;
  ScopedSequence(ScopedSequence&&) = delete;
  ScopedSequence& operator=(ScopedSequence&&) = delete;
  [[nodiscard]] SequencePages& pages() { return pages_; }

 private:
  KvManager& manager_;
  SequencePages pages_;
};

int64_t checked_max_model_len(const ModelConfig& config, int64_t requested) {
  check(requested >= 0 && requested <= config.max_positions, "max_model_len ", requested,
        ": expected at most the model's max_position_embeddings ", config.max_positions);
  return requested == 0 ? config.max_positions : requested;
}

int64_t checked_prefill_chunk(int64_t chunk) {
  check(chunk > 0, "prefill_chunk ", chunk, ": expected at least 1");
  return chunk;
}

int64_t num_pages(const CachePlan& plan, int64_t max_model_len, const GeneratorOptions& options) {
  if (options.kv_cache_bytes == 0) {
    return plan.blocks_for(max_model_len, std::min(options.prefill_chunk, max_model_len));
  }
  const int64_t pages = options.kv_cache_bytes / plan.block_bytes();
  check(pages > 0, "kv_cache_bytes ", options.kv_cache_bytes, ": expected at least one block of ", plan.block_bytes());
  return pages;
}

}  // namespace

Generator::Generator(ModelConfig config, ModelWeights weights, const GeneratorOptions& options)
    : model_(std::move(config), std::move(weights), options.model),
      max_model_len_(checked_max_model_len(model_.config(), options.max_model_len)),
      prefill_chunk_(checked_prefill_chunk(options.prefill_chunk)),
      manager_(plan_cache(cache_specs(model_.config(), options.kv_dtype), options.block_size),
               num_pages(plan_cache(cache_specs(model_.config(), options.kv_dtype), options.block_size), max_model_len_,
                         options),
               /*prefix_caching=*/false),
      cache_(manager_.plan(), manager_.num_pages()) {}

Generator Generator::load(const std::filesystem::path& directory, const GeneratorOptions& options,
                          std::string_view hf_overrides_json) {
  ModelConfig config = load_model_config(directory, hf_overrides_json);
  ModelWeights weights = load_weights(directory, config, options.kv_scales);
  return {std::move(config), std::move(weights), options};
}

Generator Generator::load_dummy(const std::filesystem::path& directory, const GeneratorOptions& options, uint64_t seed,
                                std::string_view hf_overrides_json) {
  ModelConfig config = load_model_config(directory, hf_overrides_json);
  ModelWeights weights = dummy_weights(config, seed);
  return {std::move(config), std::move(weights), options};
}

void Generator::check_tokens(std::span<const int32_t> tokens, int64_t new_tokens) const {
  const auto count = static_cast<int64_t>(tokens.size());
  check(count > 0, "prompt of 0 tokens: expected at least 1");
  for (const int32_t id : tokens) {
    check(id >= 0 && id < config().vocab_size, "token id ", id, ": expected 0 to ", config().vocab_size - 1);
  }
  check(new_tokens >= 0, "max_tokens ", new_tokens, ": expected >= 0");
  check(count <= max_model_len_ && new_tokens <= max_model_len_ - count, "prompt of ", count, " tokens + max_tokens ",
        new_tokens, ": expected at most max_model_len ", max_model_len_);
  const int64_t stored = std::max(count, count + new_tokens - 1);  // the last token drawn is never stored
  const int64_t blocks = manager_.plan().blocks_for(stored, std::min(prefill_chunk_, count));
  check(blocks <= manager_.num_pages(), "prompt of ", count, " tokens + max_tokens ", new_tokens, " needs ", blocks,
        " cache blocks: expected at most ", manager_.num_pages());
}

std::span<const float> Generator::step(SequencePages& sequence, std::span<const int32_t> tokens,
                                       std::span<const int32_t> logit_rows, std::span<const TokenSpan> spans) {
  for (const PageCopy& copy : manager_.append(sequence, static_cast<int64_t>(tokens.size()))) {
    cache_.copy_page(copy.from, copy.to);
  }
  batch_builder_.begin(manager_, batch_);
  batch_builder_.add(manager_, {.pages = sequence, .tokens = tokens, .logit_rows = logit_rows, .spans = spans}, batch_);
  return model_.forward(batch_, cache_, observer_);
}

void Generator::prefill(SequencePages& sequence, std::span<const int32_t> tokens, std::span<const int32_t> rows,
                        std::span<const TokenSpan> spans,
                        const std::function<void(std::span<const float>, size_t)>& use) {
  size_t next_row = 0;
  for (size_t begin = 0; begin < tokens.size();) {
    const auto first = static_cast<int64_t>(begin);
    const int64_t end = boundary_outside_spans(spans, std::min(first + prefill_chunk_, std::ssize(tokens)));
    check(end > first, "span at token ", first, ": expected at most prefill_chunk ", prefill_chunk_, " tokens");
    const auto chunk = tokens.subspan(begin, static_cast<size_t>(end - first));
    std::vector<int32_t> chunk_rows;
    const size_t first_row = next_row;
    while (next_row < rows.size() && static_cast<size_t>(rows[next_row]) < begin + chunk.size()) {
      chunk_rows.push_back(rows[next_row++] - static_cast<int32_t>(begin));
    }
    const std::span<const float> hidden = step(sequence, chunk, chunk_rows, spans);
    if (!chunk_rows.empty()) use(hidden, first_row);
    begin += chunk.size();
  }
}

GenerationResult Generator::generate(std::span<const int32_t> prompt, const GenerationParams& params,
                                     const TokenCallback& on_token) {
  const Clock::time_point start = Clock::now();
  check_tokens(prompt, params.max_tokens);
  check_sampling_params(params.sampling);
  GenerationResult result{.prompt_tokens = static_cast<int64_t>(prompt.size())};
  if (params.max_tokens == 0) return result;

  std::vector<int32_t> stop_ids = params.stop_token_ids;
  if (!params.ignore_eos) stop_ids.insert(stop_ids.end(), config().eos_token_ids.begin(), config().eos_token_ids.end());
  std::vector<float> logits(static_cast<size_t>(config().vocab_size));
  Sampler sampler;
  Step::SlotStart start_slot;
  start_slot.params.sampling = params.sampling;
  start_slot.tokens.assign(prompt.begin(), prompt.end());
  start_slot.prompt_len = result.prompt_tokens;
  sampler.start(start_slot);
  Sampler::Scratch scratch;
  ScopedSequence sequence(manager_);
  const auto last = static_cast<int32_t>(prompt.size()) - 1;
  prefill(sequence.pages(), prompt, {&last, 1}, {},
          [&](std::span<const float> hidden, size_t /*row*/) { model_.logits(hidden, logits.data()); });

  Clock::time_point first_token;
  for (;;) {
    const int32_t token = sampler.draw(0, logits, scratch).token;
    if (result.tokens.empty()) {
      result.ttft_s = seconds_since(start);
      first_token = Clock::now();
    }
    if (std::find(stop_ids.begin(), stop_ids.end(), token) != stop_ids.end()) {
      result.finish_reason = FinishReason::kStop;
      break;
    }
    result.tokens.push_back(token);
    if (on_token && !on_token(token)) {
      result.finish_reason = FinishReason::kAbort;
      break;
    }
    if (static_cast<int64_t>(result.tokens.size()) == params.max_tokens) break;
    const int32_t row = 0;
    model_.logits(step(sequence.pages(), {&token, 1}, {&row, 1}, {}), logits.data());
  }
  result.decode_s = seconds_since(first_token);
  if (result.tokens.size() > 1) {
    result.decode_tokens_per_s = static_cast<double>(result.tokens.size() - 1) / result.decode_s;
  }
  return result;
}

std::vector<float> Generator::logits(std::span<const int32_t> tokens, std::span<const int32_t> rows,
                                     std::span<const TokenSpan> spans) {
  check_tokens(tokens, 0);
  check_spans(spans, std::ssize(tokens));
  check(std::is_sorted(rows.begin(), rows.end()), "logit rows: expected ascending indices");
  for (const int32_t row : rows) {
    check(row >= 0 && static_cast<size_t>(row) < tokens.size(), "logit row ", row, ": expected 0 to ",
          tokens.size() - 1);
  }
  const auto vocab = static_cast<size_t>(config().vocab_size);
  std::vector<float> result(rows.size() * vocab);
  ScopedSequence sequence(manager_);
  prefill(sequence.pages(), tokens, rows, spans, [&](std::span<const float> hidden, size_t first_row) {
    model_.logits(hidden, result.data() + first_row * vocab);
  });
  return result;
}

std::vector<double> Generator::token_logprobs(std::span<const int32_t> tokens) {
  check_tokens(tokens, 0);
  constexpr size_t kRows = 32;  // logits of so many rows exist at once: 32 MB for Gemma's vocabulary
  const auto vocab = static_cast<size_t>(config().vocab_size);
  const auto width = static_cast<size_t>(config().hidden_size);
  std::vector<int32_t> rows(tokens.size() - 1);
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<double> result(rows.size());
  std::vector<float> logits(std::min(kRows, rows.size()) * vocab);
  ScopedSequence sequence(manager_);
  prefill(sequence.pages(), tokens, rows, {}, [&](std::span<const float> hidden, size_t first_row) {
    const size_t count = hidden.size() / width;
    for (size_t begin = 0; begin < count; begin += kRows) {
      const size_t end = std::min(count, begin + kRows);
      model_.logits(hidden.subspan(begin * width, (end - begin) * width), logits.data());
#pragma omp parallel for schedule(static)
      for (size_t row = begin; row < end; ++row) {
        const std::span<const float> row_logits(logits.data() + (row - begin) * vocab, vocab);
        result[first_row + row] = log_probability(row_logits, tokens[first_row + row + 1]);
      }
    }
  });
  return result;
}

}  // namespace quaver
