// One prompt at a time on the CPU: load a model, generate tokens, read logits. The serving engine batches; this is the
// loop behind `quaver generate`, `make demo` and the golden tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv_cache/manager.h"
#include "model/batch_builder.h"
#include "model/cpu_model.h"
#include "model/weights.h"
#include "ops/sampling.h"
#include "quaver/engine.h"
#include "quaver/kv_cache.h"
#include "quaver/model.h"

namespace quaver {

struct GeneratorOptions {
  KvDtype kv_dtype = KvDtype::kE4M3;
  int block_size = 64;          ///< page size in tokens of the layer kind with the most bytes a token
  int64_t max_model_len = 0;    ///< prompt and output together; 0: the model's max_position_embeddings
  int64_t prefill_chunk = 512;  ///< most prompt tokens of one forward pass
  int64_t kv_cache_bytes = 0;   ///< 0: enough for max_model_len
  KvScalePolicy kv_scales = KvScalePolicy::kAuto;
  CpuModelOptions model{};
};

struct GenerationParams {
  SamplingParams sampling{};
  int64_t max_tokens = 16;
  bool ignore_eos = false;                ///< the model's end-of-sequence ids are ordinary tokens
  std::vector<int32_t> stop_token_ids{};  ///< further ids that end the text
};

struct GenerationResult {
  std::vector<int32_t> tokens{};
  FinishReason finish_reason = FinishReason::kLength;
  int64_t prompt_tokens = 0;
  double ttft_s = 0;               ///< from the call of generate() to the first token
  double decode_s = 0;             ///< from the first token to the last
  double decode_tokens_per_s = 0;  ///< tokens after the first / decode_s; 0 for fewer than two tokens
};

/// Called with each token as it is drawn; false ends the generation.
using TokenCallback = std::function<bool(int32_t)>;

/// Not thread-safe: one call at a time.
class Generator {
 public:
  /// Throws Error(kInvalidArgument) for options that the model cannot have, with the value and the limit.
  Generator(ModelConfig config, ModelWeights weights, const GeneratorOptions& options);

  /// Loads the Hugging Face folder `directory`.
  [[nodiscard]] static Generator load(const std::filesystem::path& directory, const GeneratorOptions& options,
                                      std::string_view hf_overrides_json = {});

  /// The shapes of DIR/config.json with random weights (--load-format dummy); reads no weight file.
  [[nodiscard]] static Generator load_dummy(const std::filesystem::path& directory, const GeneratorOptions& options,
                                            uint64_t seed, std::string_view hf_overrides_json = {});

  /// Throws Error(kInvalidArgument) for an empty prompt, a token outside the vocabulary, parameters out of range, or
  /// prompt + max_tokens beyond max_model_len or the cache, naming both numbers.
  GenerationResult generate(std::span<const int32_t> prompt, const GenerationParams& params,
                            const TokenCallback& on_token = {});

  /// Logits [rows.size(), vocab] after each of the tokens `rows` (ascending indices), from one chunked prefill.
  /// `spans`: images, whose tokens see each other; none longer than prefill_chunk.
  [[nodiscard]] std::vector<float> logits(std::span<const int32_t> tokens, std::span<const int32_t> rows,
                                          std::span<const TokenSpan> spans = {});

  /// log P(tokens[i+1] | tokens[0 … i]) for i = 0 … size-2.
  [[nodiscard]] std::vector<double> token_logprobs(std::span<const int32_t> tokens);

  /// Called by every layer of every forward pass from now on; empty: none.
  void set_observer(LayerObserver observer) { observer_ = std::move(observer); }

  [[nodiscard]] const CpuModel& model() const noexcept { return model_; }
  [[nodiscard]] const ModelConfig& config() const noexcept { return model_.config(); }
  [[nodiscard]] const ModelWeights& weights() const noexcept { return model_.weights(); }
  [[nodiscard]] int64_t max_model_len() const noexcept { return max_model_len_; }
  /// Bytes that one token's K and V take in all layers together.
  [[nodiscard]] int64_t kv_bytes_per_token() const { return manager_.plan().token_bytes(); }
  /// Lines for the user: where cache scales come from, files ignored, …
  [[nodiscard]] const std::vector<std::string>& notes() const noexcept { return model_.weights().notes; }

 private:
  void check_tokens(std::span<const int32_t> tokens, int64_t new_tokens) const;
  /// Appends `tokens` to the sequence and runs them in one pass; hidden states of `logit_rows` (indices into tokens).
  std::span<const float> step(SequencePages& sequence, std::span<const int32_t> tokens,
                              std::span<const int32_t> logit_rows, std::span<const TokenSpan> spans);
  /// Runs `tokens` in chunks; calls use(hidden rows, index of the first of `rows` in it) for each chunk with rows.
  void prefill(SequencePages& sequence, std::span<const int32_t> tokens, std::span<const int32_t> rows,
               std::span<const TokenSpan> spans, const std::function<void(std::span<const float>, size_t)>& use);

  CpuModel model_;
  int64_t max_model_len_ = 0;
  int64_t prefill_chunk_ = 0;
  KvManager manager_;
  HostKvCache cache_;
  LayerObserver observer_;
  BatchBuilder batch_builder_;
  Batch batch_;  // of the current step
};

}  // namespace quaver
