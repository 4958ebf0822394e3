#include "engine/decode_rows.h"

#include <algorithm>

namespace quaver {
namespace {

constexpr int32_t kDrawnLast = -1;

uint64_t bit_of(int32_t token) {
  return uint64_t{1} << (static_cast<uint32_t>(token) % 64);
}

uint64_t not_plain(const LiveRequest& r) {
  if (r.params.logprobs >= 0) return ~uint64_t{0};
  uint64_t bits = 0;
  for (const int32_t token : r.stop_ids) bits |= bit_of(token);
  return bits;
}

template <class T>
void take_out(std::vector<T>& values, size_t row) {
  values[row] = values.back();
  values.pop_back();
}

}  // namespace

void DecodeRows::push(LiveRequest& r) {
  r.decode_row = size();
  requests_.push_back(&r);
  pages_.push_back(&r.pages);
  num_tokens_.push_back(r.pages.num_tokens);
  versions_.push_back(r.pages.version);
  quiet_until_.push_back(0);
  tokens_.push_back(kDrawnLast);
  samples_.push_back(1);
  last_.push_back(0);
  slots_.push_back(r.slot);
  ids_.push_back(r.id);
  cached_tokens_.push_back(r.cached_tokens);
  not_plain_.push_back(not_plain(r));
  next_tokens_.push_back(nullptr);
  give_room(r, std::ssize(r.tokens) + 1);  // the last chunk of its prompt may draw one
}

void DecodeRows::remove(LiveRequest& r) {
  write_back(r);
  const size_t row = r.decode_row;
  requests_.back()->decode_row = row;
  take_out(requests_, row);
  take_out(pages_, row);
  take_out(num_tokens_, row);
  take_out(versions_, row);
  take_out(quiet_until_, row);
  take_out(tokens_, row);
  take_out(samples_, row);
  take_out(last_, row);
  take_out(slots_, row);
  take_out(ids_, row);
  take_out(cached_tokens_, row);
  take_out(not_plain_, row);
  take_out(next_tokens_, row);
}

void DecodeRows::write_back(LiveRequest& r) {
  r.tokens.resize(static_cast<size_t>(num_known(r.decode_row)));
  r.pages.num_tokens = num_tokens_[r.decode_row];
  // All tokens are known up to the one that the last step draws, or more if they are computed once more.
  r.num_in_flight = std::max<int64_t>(0, r.pages.num_tokens + 1 - std::ssize(r.tokens));
}

void DecodeRows::find_special(std::vector<LiveRequest*>& requests) const {
  for (size_t row = 0; row < size(); ++row) {
    if (num_tokens_[row] >= quiet_until_[row]) requests.push_back(requests_[row]);
  }
}

void DecodeRows::prepare(LiveRequest& r, int64_t quiet_until) {
  const size_t row = r.decode_row;
  const int64_t end = r.pages.num_tokens;
  versions_[row] = r.pages.version;
  tokens_[row] = end <= std::ssize(r.tokens) ? r.tokens[static_cast<size_t>(end - 1)] : kDrawnLast;
  samples_[row] = end == r.length() ? 1 : 0;
  last_[row] = r.all_scheduled() ? 1 : 0;
  quiet_until_[row] = is_known(row) ? 0 : quiet_until;
  give_room(r, std::max(end, quiet_until_[row]) + 1);
}

/// For so many tokens, known and drawn, until the row is written back. `r` has its own numbers right.
void DecodeRows::give_room(LiveRequest& r, int64_t num_tokens) {
  const size_t known = r.tokens.size();
  r.tokens.resize(std::max(known, static_cast<size_t>(num_tokens)));
  next_tokens_[r.decode_row] = r.tokens.data() + known;
}

void DecodeRows::advance() {
  for (int64_t& count : num_tokens_) ++count;
}

}  // namespace quaver
