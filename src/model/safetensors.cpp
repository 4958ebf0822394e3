#include "model/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "core/check.h"
#include "model/json.h"

namespace quaver {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little endian and used in place");

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference reader's limit
constexpr size_t kMaxDims = 8;

/// Bits of an element of every dtype that the format knows; 0 for an unknown one.
uint64_t dtype_bits(std::string_view dtype) {
  constexpr std::pair<std::string_view, uint64_t> kBits[] = {
      {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"BOOL", 8},       {"U8", 8},   {"I8", 8},
      {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8},     {"I16", 16},       {"U16", 16}, {"F16", 16},
      {"BF16", 16},   {"I32", 32},    {"U32", 32},        {"F32", 32},       {"I64", 64}, {"U64", 64},
      {"F64", 64},    {"C64", 64},    {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}};
  for (const auto& [name, bits] : kBits) {
    if (name == dtype) return bits;
  }
  return 0;
}

template <class... Parts>
void check_data(bool ok, const Parts&... parts) {
  check_as(ErrorKind::kCorruptData, ok, parts...);
}

struct Entry {
  std::string name;
  StoredTensor tensor;
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// A list of non-negative integers.
std::vector<uint64_t> read_list(const Json& info, const char* field, const std::string& where) {
  const auto found = info.find(field);
  check_data(found != info.end() && found->is_array() && found->size() <= kMaxDims &&
                 std::all_of(found->begin(), found->end(), [](const Json& v) { return v.is_number_unsigned(); }),
             where, " ", field, " ", found == info.end() ? "missing" : printable(*found), ": expected at most ",
             kMaxDims, " non-negative integers");
  return found->get<std::vector<uint64_t>>();
}

/// Bytes of a dense tensor; fails where they do not fit 64 bits or end inside a byte.
uint64_t dense_bytes(const std::vector<uint64_t>& shape, uint64_t bits, const std::string& where) {
  constexpr uint64_t kMaxElements = uint64_t{1} << 56;
  uint64_t elements = 1;
  for (const uint64_t dim : shape) {
    check_data(dim == 0 || elements <= kMaxElements / dim, where, " shape: expected fewer than 2^56 elements");
    elements *= dim;
  }
  check_data(elements * bits % 8 == 0, where, " shape: expected whole bytes of data");
  return elements * bits / 8;
}

Entry read_entry(const std::string& name, const Json& info, std::string_view what) {
  const std::string where = concat(what, " tensor ", printable(name));
  check_data(info.is_object(), where, " ", printable(info), ": expected dtype, shape and data_offsets");
  const auto dtype = info.find("dtype");
  const uint64_t bits = dtype != info.end() && dtype->is_string() ? dtype_bits(dtype->get<std::string>()) : 0;
  check_data(bits != 0, where, " dtype ", dtype == info.end() ? "missing" : printable(*dtype),
             ": expected a safetensors dtype");
  const auto shape = read_list(info, "shape", where);
  const auto offsets = read_list(info, "data_offsets", where);
  check_data(offsets.size() == 2 && offsets[0] <= offsets[1], where, " data_offsets ", printable(info["data_offsets"]),
             ": expected [begin, end]");
  const uint64_t bytes = dense_bytes(shape, bits, where);
  check_data(offsets[1] - offsets[0] == bytes, where, " of ", offsets[1] - offsets[0], " bytes: expected ", bytes,
             " for its dtype and shape");
  return {.name = name,
          .tensor = {.dtype = dtype->get<std::string>(),
                     .shape = std::vector<int64_t>(shape.begin(), shape.end()),
                     .data = {},
                     .file = {}},
          .begin = offsets[0],
          .end = offsets[1]};
}

Json read_header(std::span<const std::byte> file, std::string_view what) {
  check_data(file.size() >= 8, what, " of ", file.size(), " bytes: expected at least 8");
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  check_data(length <= kMaxHeaderBytes && length <= file.size() - 8, what, " header length ", length,
             ": expected at most ", std::min<uint64_t>(kMaxHeaderBytes, file.size() - 8), " in a file of ", file.size(),
             " bytes");
  const std::string text(reinterpret_cast<const char*>(file.data()) + 8, length);
  check_data(text.starts_with('{'), what, " header: expected a JSON object");
  try {
    return parse_json(text, concat(what, " header"));
  } catch (const Error& error) {
    fail(ErrorKind::kCorruptData, error.what());
  }
}

}  // namespace

std::string to_string(const StoredTensor& tensor) {
  std::string text = tensor.dtype + " [";
  for (size_t axis = 0; axis < tensor.shape.size(); ++axis) text += concat(axis == 0 ? "" : ", ", tensor.shape[axis]);
  return text + "]" + in_file(tensor);
}

std::string in_file(const StoredTensor& tensor) {
  return tensor.file.empty() ? std::string() : " in " + tensor.file;
}

TensorMap parse_safetensors(std::span<const std::byte> file, std::string_view what) {
  const Json header = read_header(file, what);
  std::vector<Entry> entries;
  for (const auto& [name, info] : header.items()) {
    if (name != "__metadata__") entries.push_back(read_entry(name, info, what));
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });

  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  const auto data = file.subspan(8 + length);
  TensorMap tensors;
  uint64_t expected = 0;
  for (Entry& entry : entries) {
    check_data(entry.begin == expected, what, " tensor ", printable(entry.name), " at offset ", entry.begin,
               ": expected ", expected, ", no hole and no overlap");
    check_data(entry.end <= data.size(), what, " tensor ", printable(entry.name), " ends at offset ", entry.end,
               ": expected at most ", data.size(), ", the file's end");
    entry.tensor.data = data.subspan(entry.begin, entry.end - entry.begin);
    entry.tensor.file = what;
    expected = entry.end;
    tensors.emplace(std::move(entry.name), std::move(entry.tensor));
  }
  check_data(expected == data.size(), what, " with ", data.size(), " bytes of data: expected ", expected,
             ", the end of its last tensor");
  return tensors;
}

}  // namespace quaver
