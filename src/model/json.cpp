#include "model/json.h"

#include <fstream>
#include <set>
#include <system_error>
#include <vector>

#include "core/check.h"

namespace quaver {
namespace {

constexpr int kMaxDepth = 64;
constexpr uintmax_t kMaxFileBytes = uintmax_t{64} << 20;

}  // namespace

Json parse_json(std::string_view text, std::string_view what) {
  std::vector<std::set<std::string>> keys;  // of the open objects; nlohmann keeps the last of two equal keys silently
  const auto inspect = [&](int depth, Json::parse_event_t event, Json& value) {
    check(depth <= kMaxDepth, what, ": expected JSON nested at most ", kMaxDepth, " deep");
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key) {
      check(keys.back().insert(value.get<std::string>()).second, what, " key ", printable(value),
            " given twice: expected each key once");
    }
    return true;
  };
  check(text.find('\0') == std::string_view::npos, what, ": expected valid JSON");  // nlohmann would stop at a NUL
  try {
    return Json::parse(text, inspect);
  } catch (const Json::parse_error& error) {
    fail(ErrorKind::kInvalidArgument, what, " byte ", error.byte, ": expected valid JSON");
  } catch (const Json::exception&) {  // a number beyond double
    fail(ErrorKind::kInvalidArgument, what, ": expected JSON whose numbers are finite");
  }
}

Json load_json(const std::filesystem::path& path) {
  std::error_code error;
  check_as(ErrorKind::kNotFound, std::filesystem::exists(path, error), "file ", path.string(), ": expected to exist");
  check_as(ErrorKind::kIo, std::filesystem::is_regular_file(path, error), "file ", path.string(),
           ": expected a regular file");
  const auto bytes = std::filesystem::file_size(path, error);
  check_as(ErrorKind::kIo, !error, "file ", path.string(), ": expected a readable size");
  check(bytes <= kMaxFileBytes, "file ", path.string(), " of ", bytes, " bytes: expected at most ", kMaxFileBytes);
  std::string text(bytes, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(text.data(), static_cast<std::streamsize>(bytes));
  check_as(ErrorKind::kIo, file.good(), "file ", path.string(), ": expected to be readable");
  return parse_json(text, path.string());
}

std::string printable(const Json& value) {
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  if (text.size() > 120) text = text.substr(0, 117) + "...";
  return text;
}

Fields::Fields(const Json& object, std::string where) : object_(&object), where_(std::move(where)) {
  check(object.is_object(), where_.empty() ? "config" : where_, " ", printable(object), ": expected a JSON object");
}

const Json* Fields::find(std::string_view name) const {
  const auto field = object_->find(name);
  return field == object_->end() || field->is_null() ? nullptr : &*field;
}

std::string Fields::path(std::string_view name) const {
  if (name.empty()) return where_;
  return where_.empty() ? std::string(name) : concat(where_, ".", name);
}

int64_t integer_value(const Json& value, const std::string& path, Range<int64_t> range) {
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(range.high)) &&
                    value.get<int64_t>() >= range.low && value.get<int64_t>() <= range.high;
  check(fits, path, " ", printable(value), ": expected an integer from ", range.low, " to ", range.high);
  return value.get<int64_t>();
}

int64_t Fields::integer(std::string_view name, Range<int64_t> range, std::optional<int64_t> fallback) const {
  const Json* field = find(name);
  if (field != nullptr) return integer_value(*field, path(name), range);
  if (!fallback) {
    fail(ErrorKind::kInvalidArgument, path(name), " missing: expected an integer from ", range.low, " to ", range.high);
  }
  return *fallback;
}

int Fields::integer32(std::string_view name, Range<int> range, std::optional<int> fallback) const {
  return static_cast<int>(integer(name, {.low = range.low, .high = range.high}, fallback));
}

double Fields::number(std::string_view name, Range<double> range, std::optional<double> fallback) const {
  const Json* field = find(name);
  if (field == nullptr) {
    if (!fallback) {
      fail(ErrorKind::kInvalidArgument, path(name), " missing: expected a number from ", range.low, " to ", range.high);
    }
    return *fallback;
  }
  const double value = field->is_number() ? field->get<double>() : range.low - 1;
  check(field->is_number() && value >= range.low && value <= range.high, path(name), " ", printable(*field),
        ": expected a number from ", range.low, " to ", range.high);
  return value;
}

bool Fields::boolean(std::string_view name, bool fallback) const {
  const Json* field = find(name);
  if (field == nullptr) return fallback;
  check(field->is_boolean(), path(name), " ", printable(*field), ": expected true or false");
  return field->get<bool>();
}

std::string Fields::string(std::string_view name, std::string_view fallback) const {
  const Json* field = find(name);
  if (field == nullptr) return std::string(fallback);
  check(field->is_string(), path(name), " ", printable(*field), ": expected a string");
  return field->get<std::string>();
}

std::optional<Fields> Fields::object(std::string_view name) const {
  const Json* field = find(name);
  if (field == nullptr) return std::nullopt;
  return Fields(*field, path(name));
}

}  // namespace quaver
