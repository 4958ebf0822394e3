// A runner without a model. The token that follows a text is a function of that text and the request's seed, so every
// answer can be told in advance (expected_tokens); and every key that a model would read is checked to be the one that
// this very text wrote, in every cache group, so a wrong page, slot, table entry or position cannot go unnoticed.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "core/check.h"
#include "engine/runner.h"

namespace quaver::testing {

/// A text up to and including one token: what keys and values at its position depend on.
using Text = uint64_t;

inline Text extend(Text text, int32_t token) {
  text = (text ^ static_cast<uint64_t>(token + 1)) * 0xD1342543DE82EF95U + 0x632BE59BD9B4E019U;
  return text ^ (text >> 29);
}

inline constexpr int64_t kStubVocab = 1000;

/// A slot's start names no image spans: a real backend learns of them in the batch. The stub also wants to know those
/// in a cached prefix, and takes them from logit_bias, which it has no other use for: the bounds of one span after
/// another.
inline void note_spans(const std::vector<TokenSpan>& spans, RequestParams& params) {
  for (const TokenSpan& span : spans) {
    params.logit_bias.emplace_back(static_cast<int32_t>(span.first), 0.0F);
    params.logit_bias.emplace_back(static_cast<int32_t>(span.last), 0.0F);
  }
}

/// What is drawn after `text` if `generated` tokens were drawn before. Greedy requests ignore the seed.
inline int32_t stub_token(Text text, const RequestParams& params, const std::vector<int32_t>& stop_ids,
                          int64_t generated) {
  Text draw =
      extend(text, params.sampling.temperature < kGreedyTemperature ? 0 : static_cast<int32_t>(params.sampling.seed));
  for (;; draw = extend(draw, 1)) {
    const auto token = static_cast<int32_t>(draw % kStubVocab);
    if (generated >= params.min_tokens || std::find(stop_ids.begin(), stop_ids.end(), token) == stop_ids.end()) {
      return token;
    }
  }
}

inline float stub_logprob(Text text, int32_t token) {
  return -static_cast<float>(extend(text, token) % 4096) / 256;
}

/// The answer of a request that runs alone.
inline std::vector<int32_t> expected_tokens(const std::vector<int32_t>& prompt, const RequestParams& params,
                                            const std::vector<int32_t>& eos_token_ids = {}) {
  std::vector<int32_t> stop_ids = params.stop_token_ids;
  if (!params.ignore_eos) stop_ids.insert(stop_ids.end(), eos_token_ids.begin(), eos_token_ids.end());
  Text text = 0;
  for (const int32_t token : prompt) text = extend(text, token);
  std::vector<int32_t> tokens;
  while (std::ssize(tokens) < params.max_tokens) {
    tokens.push_back(stub_token(text, params, stop_ids, std::ssize(tokens)));
    if (std::find(stop_ids.begin(), stop_ids.end(), tokens.back()) != stop_ids.end()) break;
    text = extend(text, tokens.back());
  }
  return tokens;
}

/// The reported values of prompt tokens 1, 2, ….
inline std::vector<float> expected_prompt_logprobs(const std::vector<int32_t>& prompt) {
  std::vector<float> values;
  Text text = 0;
  for (size_t i = 0; i + 1 < prompt.size(); ++i) {
    text = extend(text, prompt[i]);
    values.push_back(stub_logprob(text, prompt[i + 1]));
  }
  return values;
}

/// Executes steps one after the other. Throws Error(kInternal) for a step that contradicts itself or the past.
class StubModel {
 public:
  StubModel(CachePlan plan, int64_t num_pages)
      : plan_(std::move(plan)),
        num_pages_(num_pages),
        memory_(static_cast<size_t>(num_pages * plan_.largest_page_tokens), 0) {}

  StepResult execute(const Step& step) {
    for (const PageCopy& copy : step.page_copies) copy_page(copy);
    for (const Step::SlotStart& start : step.starts) {
      Owner& owner = owners_[start.slot];
      owner = {.start = start, .texts = {}, .span_last = {}};
      for (const int32_t token : start.tokens) owner.append(token);
      for (size_t i = 0; i + 1 < start.params.logit_bias.size(); i += 2) {
        const int64_t last = start.params.logit_bias[i + 1].first;
        for (int64_t token = start.params.logit_bias[i].first; token < last; ++token) owner.span_last[token] = last;
      }
    }
    check_shapes(step);
    // A model writes the keys of all rows of a layer before it reads any.
    std::set<std::pair<size_t, int64_t>> written;
    for (int64_t row = 0; row < step.batch.num_sequences(); ++row) write_keys(step, row, written);
    for (int64_t row = 0; row < step.batch.num_sequences(); ++row) read_keys(step, row);
    return sample(step);
  }

 private:
  /// What the backend keeps for a slot.
  struct Owner {
    Step::SlotStart start;
    std::vector<Text> texts;               // by position
    std::map<int64_t, int64_t> span_last;  // of the positions in an image: where it ends
    /// What the keys of group `g` at a position depend on: in an image also on what comes until its end.
    [[nodiscard]] Text key(int64_t position, size_t g) const {
      const auto span = span_last.find(position);
      const Text text = span == span_last.end()
                            ? texts.at(static_cast<size_t>(position))
                            : extend(texts.at(static_cast<size_t>(span->second - 1)), static_cast<int32_t>(position));
      return extend(text, static_cast<int32_t>(g));
    }
    void append(int32_t token) { texts.push_back(extend(texts.empty() ? 0 : texts.back(), token)); }
  };

  template <class... Parts>
  static void require(bool ok, const Parts&... parts) {
    check_as(ErrorKind::kInternal, ok, "stub model: ", parts...);
  }

  void copy_page(const PageCopy& copy) {
    const int64_t size = plan_.largest_page_tokens;
    std::copy_n(memory_.begin() + copy.from * size, size, memory_.begin() + copy.to * size);
  }

  void check_shapes(const Step& step) const {
    const Batch& batch = step.batch;
    const int64_t rows = batch.num_sequences();
    const int64_t tokens = batch.num_tokens();
    require(rows > 0 && tokens > 0, rows, " rows of ", tokens, " tokens");
    require(std::ssize(batch.positions) == tokens && std::ssize(batch.query_start) == rows + 1 &&
                batch.query_start.front() == 0 && batch.query_start.back() == tokens,
            "positions or query_start");
    require(batch.groups.size() == plan_.groups.size(), "groups ", batch.groups.size());
    for (const Batch::Group& group : batch.groups) {
      require(std::ssize(group.slots) == tokens, "slots ", group.slots.size());
      require(std::ssize(group.block_table) >= rows * group.max_pages, "block table");
    }
    require(std::is_sorted(batch.logit_rows.begin(), batch.logit_rows.end()), "logit rows not ascending");
    require(std::ssize(step.row_slots) == rows, "row slots ", step.row_slots.size());
    require(batch.span_ids.empty() || std::ssize(batch.span_ids) == tokens, "span ids ", batch.span_ids.size());
    std::map<int32_t, int32_t> fed;  // token → slot
    for (const Step::Feedback& feedback : step.feedback) fed[feedback.row] = feedback.slot;
    for (size_t row = 0; row < step.row_slots.size(); ++row) check_row(batch, row, step.row_slots[row], fed);
    require(fed.empty(), "feedback for rows that are not there");
  }

  /// A row continues its slot's text with that text's own tokens.
  void check_row(const Batch& batch, size_t row, int32_t slot, std::map<int32_t, int32_t>& fed) const {
    const Owner& owner = owners_.at(slot);
    const int32_t first = batch.query_start[row];
    const int32_t end = batch.query_start[row + 1];
    require(first < end, "row ", row, " has no tokens");
    require(batch.seq_lens[row] <= std::ssize(owner.texts), "row ", row, " of length ", batch.seq_lens[row]);
    for (int32_t i = first; i < end; ++i) {
      const auto position = static_cast<size_t>(batch.positions[static_cast<size_t>(i)]);
      require(std::ssize(owner.texts) > batch.positions[static_cast<size_t>(i)] &&
                  batch.positions[static_cast<size_t>(i)] == batch.seq_lens[row] - (end - i),
              "position ", position, " of token ", i);
      const int32_t token = batch.token_ids[static_cast<size_t>(i)];
      if (const auto feedback = fed.find(i); feedback != fed.end()) {
        require(feedback->second == slot && token == -1 && position + 1 == owner.texts.size(), "feedback to row ", i);
        fed.erase(feedback);
      } else {
        require(extend(position == 0 ? 0 : owner.texts[position - 1], token) == owner.texts[position], "token ", token,
                " at position ", position, " of slot ", slot);
      }
    }
    check_spans_of_row(batch, row, owner);
  }

  /// Equal ids are images: all of one, each with an id of its own.
  static void check_spans_of_row(const Batch& batch, size_t row, const Owner& owner) {
    std::map<int32_t, int64_t> last_of_id;
    const int64_t end = batch.seq_lens[row];
    for (int32_t i = batch.query_start[row]; i < batch.query_start[row + 1]; ++i) {
      const int64_t position = batch.positions[static_cast<size_t>(i)];
      const int32_t id = batch.span_ids.empty() ? -1 : batch.span_ids[static_cast<size_t>(i)];
      const auto span = owner.span_last.find(position);
      require((id >= 0) == (span != owner.span_last.end()), "span id ", id, " at position ", position);
      if (id < 0) continue;
      require(span->second <= end, "row ", row, " ends at ", end, " inside an image that ends at ", span->second);
      const bool first_of_row = i == batch.query_start[row];
      const auto before = owner.span_last.find(position - 1);
      require(!first_of_row || before == owner.span_last.end() || before->second != span->second, "row ", row,
              " begins inside an image at ", position);
      require(last_of_id.try_emplace(id, span->second).first->second == span->second, "span id ", id, " of two images");
    }
  }

  void write_keys(const Step& step, int64_t row, std::set<std::pair<size_t, int64_t>>& written) {
    const Batch& batch = step.batch;
    const Owner& owner = owners_.at(step.row_slots[static_cast<size_t>(row)]);
    for (auto i = static_cast<size_t>(batch.query_start[static_cast<size_t>(row)]);
         i < static_cast<size_t>(batch.query_start[static_cast<size_t>(row) + 1]); ++i) {
      for (size_t g = 0; g < plan_.groups.size(); ++g) {
        const int64_t slot = batch.groups[g].slots[i];
        require(slot >= 0 && slot < num_pages_ * plan_.groups[g].layout.page_size, "slot ", slot, " of group ", g);
        require(written.insert({g, slot}).second, "slot ", slot, " of group ", g, " written twice");
        key_at(g, slot) = owner.key(batch.positions[i], g);
      }
    }
  }

  void read_keys(const Step& step, int64_t row) {
    const Batch& batch = step.batch;
    const Owner& owner = owners_.at(step.row_slots[static_cast<size_t>(row)]);
    const int64_t length = batch.seq_lens[static_cast<size_t>(row)];
    const int64_t first_query = batch.positions[static_cast<size_t>(batch.query_start[static_cast<size_t>(row)])];
    for (size_t g = 0; g < plan_.groups.size(); ++g) {
      const CacheGroup& group = plan_.groups[g];
      const int64_t page_size = group.layout.page_size;
      const int32_t* const table = batch.groups[g].block_table.data() + row * batch.groups[g].max_pages;
      const int64_t oldest = group.window > 0 ? std::max<int64_t>(0, first_query - group.window + 1) : 0;
      for (int64_t key = oldest; key < length; ++key) {
        const int64_t page = table[key / page_size];
        require(page >= 0 && page < num_pages_, "page ", page, " of key ", key, " in group ", g);
        require(key_at(g, page * page_size + key % page_size) == owner.key(key, g), "row ", row,
                " reads another text's key ", key, " of ", length, " in group ", g);
      }
      for (int64_t entry = 0; entry < batch.groups[g].max_pages; ++entry) {
        const bool used = entry >= oldest / page_size && entry * page_size < length;
        // One that has just left the window is given up with the next token, where that one wants a page.
        const bool waits = (entry + 1) * page_size == oldest && length % page_size == 0;
        require(used || waits || table[entry] == -1, "unused table entry ", entry, " of row ", row, ": ", table[entry]);
      }
    }
  }

  /// Pages are the same memory for all groups, whatever their page size.
  Text& key_at(size_t group, int64_t slot) {
    const int64_t page_size = plan_.groups[group].layout.page_size;
    return memory_[static_cast<size_t>(slot / page_size * plan_.largest_page_tokens + slot % page_size)];
  }

  StepResult sample(const Step& step) {
    StepResult result;
    for (const Step::PromptLogprob& wanted : step.prompt_logprobs) {
      const Owner& owner = owners_.at(wanted.slot);
      const auto position = static_cast<size_t>(position_of(step, wanted.logit_row));
      require(extend(owner.texts[position], wanted.target) == owner.texts[position + 1], "prompt logprob target");
      result.prompt_logprobs.push_back({.token = wanted.target,
                                        .logprob = stub_logprob(owner.texts[position], wanted.target),
                                        .rank = 1,
                                        .top = {}});
    }
    for (const Step::Sample& wanted : step.samples) {
      Owner& owner = owners_.at(wanted.slot);
      const int64_t position = position_of(step, wanted.logit_row);
      require(position + 1 == std::ssize(owner.texts), "sample at position ", position, " of ", owner.texts.size());
      const Text text = owner.texts.back();
      const int64_t generated = std::ssize(owner.texts) - owner.start.prompt_len;
      const int32_t token = stub_token(text, owner.start.params, owner.start.stop_token_ids, generated);
      owner.append(token);
      result.tokens.push_back(token);
      result.logprobs.emplace_back();
      if (owner.start.params.logprobs >= 0) {
        result.logprobs.back() =
            TokenLogprobs{.token = token, .logprob = stub_logprob(text, token), .rank = 1, .top = {}};
      }
    }
    return result;
  }

  static int64_t position_of(const Step& step, int32_t logit_row) {
    return step.batch.positions.at(static_cast<size_t>(step.batch.logit_rows.at(static_cast<size_t>(logit_row))));
  }

  CachePlan plan_;
  int64_t num_pages_ = 0;
  std::vector<Text> memory_;         // [page][token of the largest page]: the text, and the group that wrote it
  std::map<int32_t, Owner> owners_;  // by slot
};

/// The model behind a thread of its own, as a real backend is: steps run while the next one is prepared.
class StubRunner : public Runner {
 public:
  struct Options {
    CachePlan plan;
    int64_t num_pages = 0;
    int64_t max_positions = 1 << 20;
    bool takes_spans = true;
    std::chrono::microseconds latency{0};                               ///< of every step
    std::function<void(int64_t step)> before_launch = [](int64_t) {};   ///< may throw: launch() of that step does
    std::function<void(int64_t step)> before_execute = [](int64_t) {};  ///< may throw: wait() for that step does
  };

  explicit StubRunner(Options options)
      : options_(std::move(options)), model_(options_.plan, options_.num_pages), thread_([this] { run(); }) {}

  ~StubRunner() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  StubRunner(const StubRunner&) = delete;
  StubRunner& operator=(const StubRunner&) = delete;
  StubRunner(StubRunner&&) = delete;
  StubRunner& operator=(StubRunner&&) = delete;

  void launch(const Step& step) override {
    options_.before_launch(num_launches_++);
    {
      const std::lock_guard lock(mutex_);
      check_as(ErrorKind::kInternal, queue_.size() + results_.size() + busy_ < kMaxInFlight,
               "too many steps in flight");
      queue_.push_back(&step);
    }
    changed_.notify_all();
  }

  StepResult wait() override {
    std::unique_lock lock(mutex_);
    check_as(ErrorKind::kInternal, queue_.size() + results_.size() + busy_ > 0, "no step in flight");
    changed_.wait(lock, [this] { return !results_.empty(); });
    const Result result = std::move(results_.front());
    results_.pop_front();
    if (result.error) std::rethrow_exception(result.error);
    return result.result;
  }

  const CachePlan& cache_plan() const noexcept override { return options_.plan; }
  int64_t num_pages() const noexcept override { return options_.num_pages; }
  int64_t vocab_size() const noexcept override { return kStubVocab; }
  int64_t max_positions() const noexcept override { return options_.max_positions; }
  bool takes_spans() const noexcept override { return options_.takes_spans; }

 private:
  struct Result {
    StepResult result;
    std::exception_ptr error;
  };

  void run() {
    std::unique_lock lock(mutex_);
    for (int64_t number = 0;; ++number) {
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const Step* const step = queue_.front();
      queue_.pop_front();
      busy_ = 1;
      lock.unlock();
      Result result;
      try {
        std::this_thread::sleep_for(options_.latency);
        options_.before_execute(number);
        result.result = model_.execute(*step);
      } catch (const std::exception&) {
        result.error = std::current_exception();
      }
      lock.lock();
      busy_ = 0;
      results_.push_back(std::move(result));
      changed_.notify_all();
    }
  }

  Options options_;
  StubModel model_;
  int64_t num_launches_ = 0;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<const Step*> queue_;
  std::deque<Result> results_;
  size_t busy_ = 0;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace quaver::testing
