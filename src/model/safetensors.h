// Reader of safetensors checkpoints (github.com/huggingface/safetensors, "Format"): files are mapped, never copied, and
// every number of a header is checked before it is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quaver {

/// One tensor as stored; `data` points into a mapping and need not be aligned.
struct StoredTensor {
  std::string dtype;  ///< as in the file: "BF16", "F8_E4M3", …
  std::vector<int64_t> shape;
  std::span<const std::byte> data;  ///< exactly the bytes that dtype and shape need
  std::string file{};               ///< for messages; empty: of no file
};

using TensorMap = std::map<std::string, StoredTensor, std::less<>>;

/// "BF16 [640, 1024] in model.safetensors", for messages.
[[nodiscard]] std::string to_string(const StoredTensor& tensor);

/// " in model.safetensors", for messages; empty for a tensor of no file.
[[nodiscard]] std::string in_file(const StoredTensor& tensor);

/// Parses the bytes of one safetensors file; the result points into them. `what` names the file in messages.
/// Throws Error(kCorruptData) for a header that is no JSON object of tensors, an unknown dtype, a shape whose bytes
/// differ from its data_offsets, and offsets that do not tile the data exactly (holes and overlaps are outside the
/// format: "the byte buffer needs to be entirely indexed, and cannot contain holes").
[[nodiscard]] TensorMap parse_safetensors(std::span<const std::byte> file, std::string_view what);

/// A file mapped read-only for as long as this object lives.
class MappedFile {
 public:
  /// Throws Error(kNotFound / kIo / kCorruptData) naming the path: missing, no regular file, unreadable, empty.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }
  /// Takes what was read so far out of the memory of this process; reading it again is allowed.
  void drop_resident() const noexcept;

 private:
  std::span<const std::byte> bytes_;
};

/// All tensors of a checkpoint folder.
struct Checkpoint {
  TensorMap tensors;
  std::vector<std::shared_ptr<const MappedFile>> files;  ///< what the tensors point into
  std::vector<std::string> notes;                        ///< lines for the user, such as files that were ignored
};

/// Maps the shards that model.safetensors.index.json names, or else model.safetensors, or else the only *.safetensors
/// file. Throws Error(kNotFound) listing every shard or tensor that the index names and that is not there.
[[nodiscard]] Checkpoint open_checkpoint(const std::filesystem::path& directory);

}  // namespace quaver
