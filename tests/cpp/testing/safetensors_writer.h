// Writes safetensors files for tests, with the bytes exactly as asked: nothing is checked.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/bf16.h"

namespace quaver::testing {

class SafetensorsWriter {
 public:
  using Shape = std::vector<int64_t>;
  struct Tensor {
    std::string dtype;
    Shape shape;
    std::string bytes;
  };

  /// Replaces a tensor of the same name.
  void add(const std::string& name, std::string dtype, Shape shape, std::string bytes) {
    tensors_[name] = {.dtype = std::move(dtype), .shape = std::move(shape), .bytes = std::move(bytes)};
  }
  void add_f32(const std::string& name, Shape shape, const std::vector<float>& values) {
    add(name, "F32", std::move(shape), raw(values));
  }
  void add_bf16(const std::string& name, Shape shape, const std::vector<float>& values) {
    std::vector<uint16_t> bits;
    bits.reserve(values.size());
    for (const float value : values) bits.push_back(to_bf16(value).bits);
    add(name, "BF16", std::move(shape), raw(bits));
  }
  void add_e4m3(const std::string& name, Shape shape, const std::vector<uint8_t>& codes) {
    add(name, "F8_E4M3", std::move(shape), raw(codes));
  }
  void erase(const std::string& name) { tensors_.erase(name); }
  [[nodiscard]] std::map<std::string, Tensor>& tensors() { return tensors_; }

  /// The whole file: length, header padded to 8 bytes, data in order of the names.
  [[nodiscard]] std::string bytes() const {
    nlohmann::json header = nlohmann::json::object();
    std::string data;
    for (const auto& [name, tensor] : tensors_) {
      header[name] = {{"dtype", tensor.dtype},
                      {"shape", tensor.shape},
                      {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
      data += tensor.bytes;
    }
    std::string text = header.dump();
    text.append((8 - text.size() % 8) % 8, ' ');
    return assemble(text, data);
  }
  /// A file from a header that the caller wrote.
  [[nodiscard]] static std::string assemble(const std::string& header, const std::string& data) {
    return raw(std::vector<uint64_t>{header.size()}) + header + data;
  }

  void write(const std::filesystem::path& path) const { std::ofstream(path, std::ios::binary) << bytes(); }

 private:
  template <class T>
  static std::string raw(const std::vector<T>& values) {
    std::string text(values.size() * sizeof(T), '\0');
    if (!values.empty()) std::memcpy(text.data(), values.data(), text.size());
    return text;
  }

  std::map<std::string, Tensor> tensors_;
};

}  // namespace quaver::testing
