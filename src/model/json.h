// Strict reading of JSON that strangers wrote: bounded nesting, no duplicate keys, and one clear error that names the
// field, its value and what was expected.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace quaver {

using Json = nlohmann::json;

/// Parses `text`. Throws Error(kInvalidArgument) naming `what` and the byte where the text stops being JSON, and for
/// nesting deeper than 64 or a key given twice in one object.
[[nodiscard]] Json parse_json(std::string_view text, std::string_view what);

/// Reads and parses a file of at most 64 MiB. Throws Error(kNotFound / kIo / kInvalidArgument) naming the path.
[[nodiscard]] Json load_json(const std::filesystem::path& path);

/// A name or value of unknown origin for a message: strings in quotes, ASCII without control characters, at most 120
/// characters.
[[nodiscard]] std::string printable(const Json& value);

/// Inclusive bounds of a number.
template <class T>
struct Range {
  T low;
  T high;
};

/// Typed access to the fields of one JSON object. JSON null is the same as an absent field. Every getter throws
/// Error(kInvalidArgument) for a wrong type, a value out of range, or an absent field without fallback.
class Fields {
 public:
  /// `object` must outlive this view; `where` is its path in messages ("text_config").
  Fields(const Json& object, std::string where);

  /// Null when absent.
  [[nodiscard]] const Json* find(std::string_view name) const;
  [[nodiscard]] bool has(std::string_view name) const { return find(name) != nullptr; }

  [[nodiscard]] int64_t integer(std::string_view name, Range<int64_t> range,
                                std::optional<int64_t> fallback = std::nullopt) const;
  [[nodiscard]] int integer32(std::string_view name, Range<int> range,
                              std::optional<int> fallback = std::nullopt) const;
  [[nodiscard]] double number(std::string_view name, Range<double> range,
                              std::optional<double> fallback = std::nullopt) const;
  [[nodiscard]] bool boolean(std::string_view name, bool fallback) const;
  [[nodiscard]] std::string string(std::string_view name, std::string_view fallback) const;
  [[nodiscard]] std::optional<Fields> object(std::string_view name) const;

  /// "text_config.head_dim", for messages; the object itself for an empty name.
  [[nodiscard]] std::string path(std::string_view name) const;
  [[nodiscard]] const Json& json() const noexcept { return *object_; }

 private:
  const Json* object_;
  std::string where_;
};

/// An integer value inside `range`; `path` names it in the error.
[[nodiscard]] int64_t integer_value(const Json& value, const std::string& path, Range<int64_t> range);

}  // namespace quaver
