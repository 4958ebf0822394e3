// The requests that decode, as arrays in the order of their rows in a step. What almost every step does to a request,
// one more token, then touches some 100 bytes of it here, next to those of its neighbours, instead of the cache lines
// of a LiveRequest, its tokens and its pages.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/live_request.h"
#include "model/batch_builder.h"

namespace quaver {

class DecodeRows {
 public:
  [[nodiscard]] size_t size() const noexcept { return requests_.size(); }

  /// `r` becomes the last row. While it is here its own tokens, pages.num_tokens and num_in_flight are out of date.
  void push(LiveRequest& r);
  /// Takes `r` out, its own numbers right again; the last row moves into its place.
  void remove(LiveRequest& r);
  /// Makes the request's own numbers right.
  void write_back(LiveRequest& r);

  /// Appends those of which the next step takes more than a token from the step before it: each of them must be
  /// prepared before advance().
  void find_special(std::vector<LiveRequest*>& requests) const;
  /// What the next step does to `r`, whose pages have room for it. It is not special again before it has more than
  /// `quiet_until` tokens.
  void prepare(LiveRequest& r, int64_t quiet_until);
  /// Each row gets its token; what follows is that of the step under construction.
  void advance();

  [[nodiscard]] OneTokenRows rows() const {
    return {.num_tokens = num_tokens_, .tokens = tokens_, .versions = versions_, .pages = pages_};
  }
  [[nodiscard]] LiveRequest& request(size_t row) const { return *requests_[row]; }
  /// Tokens of the request that are known. LiveRequest::tokens has room for more at its end.
  [[nodiscard]] int64_t num_known(size_t row) const { return next_tokens_[row] - requests_[row]->tokens.data(); }
  [[nodiscard]] int32_t slot(size_t row) const { return slots_[row]; }
  /// Its token is known: it may have been computed before, or is here before it is fed back.
  [[nodiscard]] bool is_known(size_t row) const { return tokens_[row] >= 0; }
  [[nodiscard]] bool samples(size_t row) const { return samples_[row] != 0; }
  /// Nothing of the request runs after it.
  [[nodiscard]] bool is_last(size_t row) const { return last_[row] != 0; }

  /// Takes in a token that was drawn for `r`.
  void append(const LiveRequest& r, int32_t token) { append(r.decode_row, token); }
  /// Whether a token that was drawn for row `row` of a step, when that row was `request`'s, is no more than a token:
  /// the request still has its row, the token cannot end it, and it wants no logprobs.
  [[nodiscard]] bool is_plain(size_t row, const LiveRequest* request, int32_t token) const {
    return row < size() && requests_[row] == request &&
           (not_plain_[row] >> (static_cast<uint32_t>(token) % 64) & 1) == 0;
  }
  /// Takes such a token in; its output.
  [[nodiscard]] Output append_plain(size_t row, int32_t token) {
    append(row, token);
    return {.request_id = ids_[row], .token = token, .cached_tokens = cached_tokens_[row]};
  }

 private:
  void append(size_t row, int32_t token) { *next_tokens_[row]++ = token; }
  void give_room(LiveRequest& r, int64_t num_tokens);

  std::vector<LiveRequest*> requests_;
  std::vector<const SequencePages*> pages_;
  std::vector<int64_t> num_tokens_;  // SequencePages::num_tokens
  std::vector<uint64_t> versions_;   // SequencePages::version
  std::vector<int64_t> quiet_until_;
  std::vector<int32_t> tokens_;   // that the step computes; -1: the one that was drawn last
  std::vector<uint8_t> samples_;  // whether the step draws one
  std::vector<uint8_t> last_;
  std::vector<int32_t> slots_;
  std::vector<uint64_t> ids_;
  std::vector<int64_t> cached_tokens_;
  std::vector<uint64_t> not_plain_;    // bit t % 64: token t may end it
  std::vector<int32_t*> next_tokens_;  // in LiveRequest::tokens, which has room until the row is special again
};

}  // namespace quaver
