// Which files of a folder make up the checkpoint, and their mapping into memory.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>
#include <system_error>

#include "core/check.h"
#include "model/json.h"
#include "model/safetensors.h"

namespace quaver {
namespace {

namespace fs = std::filesystem;

class FileDescriptor {
 public:
  /// Non-blocking, so that a FIFO in place of a file is refused and not waited for.
  explicit FileDescriptor(const fs::path& path) : value_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (value_ >= 0) return;
    const int error = errno;
    fail(error == ENOENT ? ErrorKind::kNotFound : ErrorKind::kIo, "file ", path.string(), ": ", std::strerror(error),
         ", expected a readable file");
  }
  ~FileDescriptor() { close(value_); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  [[nodiscard]] int get() const noexcept { return value_; }

 private:
  int value_;
};

std::string join(const std::set<std::string>& items) {
  std::string text;
  for (const auto& item : items) text += (text.empty() ? "" : ", ") + item;
  return text;
}

std::set<std::string> safetensors_files(const fs::path& directory) {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (entry.path().extension() == ".safetensors") names.insert(entry.path().filename().string());
  }
  check_as(ErrorKind::kNotFound, !error, "model directory ", directory.string(), ": expected a readable folder");
  return names;
}

/// Tensor name to shard file name.
std::map<std::string, std::string> read_index(const fs::path& path) {
  const Json index = load_json(path);
  const auto weight_map = Fields(index, path.string()).object("weight_map");
  if (!weight_map) fail(ErrorKind::kCorruptData, path.string(), ": expected a weight_map");
  std::map<std::string, std::string> shards;
  for (const auto& [tensor, file] : weight_map->json().items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    check_as(ErrorKind::kCorruptData, !name.empty() && name == fs::path(name).filename() && name != "." && name != "..",
             path.string(), " weight_map ", printable(tensor), " in ", printable(file),
             ": expected the name of a file beside the index");
    shards.emplace(tensor, name);
  }
  return shards;
}

TensorMap map_file(const fs::path& path, Checkpoint& checkpoint) {
  const auto& file = checkpoint.files.emplace_back(std::make_shared<MappedFile>(path));
  return parse_safetensors(file->bytes(), path.string());
}

/// The one file of a checkpoint without index.
std::string single_file(const fs::path& directory, const std::set<std::string>& present) {
  if (present.contains("model.safetensors")) return "model.safetensors";
  check_as(ErrorKind::kNotFound, !present.empty(), "model directory ", directory.string(),
           " without weights: expected model.safetensors or model.safetensors.index.json");
  check_as(ErrorKind::kNotFound, present.size() == 1, "model directory ", directory.string(), " with ", join(present),
           ": expected model.safetensors.index.json to say which tensors are in which file");
  return *present.begin();
}

void map_shards(const fs::path& directory, const std::map<std::string, std::string>& index,
                const std::set<std::string>& present, Checkpoint& checkpoint) {
  std::set<std::string> shards;
  std::set<std::string> missing;
  for (const auto& [tensor, shard] : index) shards.insert(shard);
  for (const auto& shard : shards) {
    if (!present.contains(shard)) missing.insert(shard);
  }
  check_as(ErrorKind::kNotFound, missing.empty(), "model directory ", directory.string(), ": missing ", join(missing),
           ", expected every file that the index names");
  for (const auto& shard : shards) {
    TensorMap tensors = map_file(directory / shard, checkpoint);
    for (auto& [name, tensor] : tensors) {
      const auto place = index.find(name);
      if (place != index.end() && place->second == shard) checkpoint.tensors.emplace(name, std::move(tensor));
    }
  }
  for (const auto& [tensor, shard] : index) {
    if (!checkpoint.tensors.contains(tensor)) missing.insert(concat(printable(tensor), " in ", shard));
  }
  check_as(ErrorKind::kNotFound, missing.empty(), "model directory ", directory.string(), ": missing ", join(missing),
           ", expected every tensor that the index names");
}

}  // namespace

MappedFile::MappedFile(const fs::path& path) {
  const FileDescriptor file(path);
  struct stat status{};
  check_as(ErrorKind::kIo, fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode), "file ", path.string(),
           ": expected a regular file");
  check_as(ErrorKind::kCorruptData, status.st_size > 0, "file ", path.string(), " of 0 bytes: expected a header");
  const auto size = static_cast<size_t>(status.st_size);
  void* memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  check_as(ErrorKind::kIo, memory != MAP_FAILED, "file ", path.string(), ": ", std::strerror(errno),
           ", expected to map ", size, " bytes");
  bytes_ = {static_cast<const std::byte*>(memory), size};
  madvise(memory, size, MADV_WILLNEED);  // starts reading ahead; a refusal costs time only
}

void MappedFile::drop_resident() const noexcept {
  madvise(const_cast<std::byte*>(bytes_.data()), bytes_.size(), MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

Checkpoint open_checkpoint(const fs::path& directory) {
  Checkpoint checkpoint;
  std::set<std::string> unused = safetensors_files(directory);
  const fs::path index_path = directory / "model.safetensors.index.json";
  std::error_code ignored;
  if (fs::exists(index_path, ignored)) {
    const auto index = read_index(index_path);
    map_shards(directory, index, unused, checkpoint);
    for (const auto& [tensor, shard] : index) unused.erase(shard);
  } else {
    const std::string name = single_file(directory, unused);
    checkpoint.tensors = map_file(directory / name, checkpoint);
    unused.erase(name);
  }
  if (!unused.empty()) checkpoint.notes.push_back(concat("ignored, not part of the checkpoint: ", join(unused)));
  return checkpoint;
}

}  // namespace quaver
