// Expects that a call throws quaver::Error with every given part in its one-line message.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "quaver/error.h"

namespace quaver::testing {

template <class Call>
void expect_error(Call&& call, std::optional<ErrorKind> kind, std::initializer_list<std::string_view> parts) {
  try {
    call();
  } catch (const Error& error) {
    const std::string message = error.what();
    if (kind) {
      EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(*kind)) << message;
    }
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    for (const auto part : parts) EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks: " << part;
    return;
  }
  ADD_FAILURE() << "no error; expected one with: " << (parts.size() == 0 ? "" : *parts.begin());
}

}  // namespace quaver::testing
