// Text made of values. Numbers are written as the C locale has it, whatever the process's: names of tensors are made
// here too. No streams, whose formatting is lost where a process holds a second C++ library.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace quaver {

/// `value` with `digits` behind the point.
[[nodiscard]] inline std::string fixed_point(double value, int digits) {
  char text[512];  // the largest double has 309 digits
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::fixed, digits);
  return {text, end.ptr};
}

[[nodiscard]] inline std::string hexadecimal(uint64_t value) {
  char text[16];
  return std::string("0x").append(text, std::to_chars(text, text + sizeof text, value, 16).ptr);
}

namespace detail {

template <class Part>
void append(std::string& text, const Part& part) {
  if constexpr (std::is_same_v<Part, char>) {
    text += part;
  } else if constexpr (std::is_same_v<Part, bool>) {
    text += part ? '1' : '0';
  } else if constexpr (std::is_floating_point_v<Part>) {
    constexpr int kDigits = 6;
    char number[32];
    const auto end = std::to_chars(number, number + sizeof number, part, std::chars_format::general, kDigits);
    text.append(number, end.ptr);
  } else if constexpr (std::is_integral_v<Part>) {
    char number[32];
    text.append(number, std::to_chars(number, number + sizeof number, part).ptr);
  } else if constexpr (std::is_convertible_v<const Part&, std::string_view>) {
    text += std::string_view(part);
  } else {
    static_assert(std::is_pointer_v<Part>, "expected text, a number or an address");
    text += hexadecimal(reinterpret_cast<uintptr_t>(part));
  }
}

}  // namespace detail

/// "a 1 b 0.5": floating-point numbers with up to 6 digits, bool as 0 or 1, pointers in hexadecimal.
template <class... Parts>
[[nodiscard]] std::string concat(const Parts&... parts) {
  std::string text;
  (detail::append(text, parts), ...);
  return text;
}

}  // namespace quaver
