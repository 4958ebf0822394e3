// An Engine over a stub runner, and what came out of it by request.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "serving.h"
#include "testing/expect_error.h"
#include "testing/stub_runner.h"

namespace quaver::testing {

struct Served {
  explicit Served(StubRunner::Options runner, const EngineOptions& options = {})
      : engine(std::make_unique<StubRunner>(std::move(runner)), options, {kEos}) {}

  void add(uint64_t id, std::vector<int32_t> prompt, const RequestParams& params) {
    requests[id] = {.id = id, .prompt = std::move(prompt), .params = params};
    answers[id] = {};
    engine.add(requests[id]);
  }

  /// Takes the outputs that are there, or come within the time.
  void take(double timeout_s) {
    for (const Output& output : engine.wait(timeout_s)) answers[output.request_id].take(output);
  }

  /// Until every request has ended.
  void finish_all() {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::ranges::any_of(answers, [](const auto& entry) { return !entry.second.finish_reason; })) {
      ASSERT_LT(std::chrono::steady_clock::now(), limit);
      take(0.1);
    }
  }

  void expect_right(uint64_t id) { expect_solo_answer(requests.at(id), answers[id]); }

  std::map<uint64_t, Request> requests;
  std::map<uint64_t, Answer> answers;
  Engine engine;
};

}  // namespace quaver::testing
