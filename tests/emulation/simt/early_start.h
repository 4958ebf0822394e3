// Programmatic launches that begin as early as they may.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace quaver::simt {

/// While it lives, what a kernel that was launched programmatically does before griddepcontrol.wait sees device memory
/// as it was when the last kernel launched in the ordinary way began: nothing that this one or those behind it wrote.
/// Where they wrote, it may not write. For one stream.
class EarlyStart {
 public:
  EarlyStart();
  EarlyStart(const EarlyStart&) = delete;
  EarlyStart& operator=(const EarlyStart&) = delete;
  ~EarlyStart();
};

/// Device memory at a moment, by allocation.
using MemoryImage = std::map<uint8_t*, std::vector<uint8_t>>;

/// What has changed in device memory since an image.
class Changes {
 public:
  explicit Changes(const MemoryImage& before);
  /// Memory is as before …
  void hide();
  /// … and again as it was when it was hidden. Throws Error(kCuda) if some of it has been written meanwhile.
  void show();
  [[nodiscard]] bool hidden() const { return hidden_; }

 private:
  struct Block {
    uint8_t* begin = nullptr;
    std::vector<uint8_t> before;
    std::vector<uint8_t> now{};
  };
  std::vector<Block> blocks_;
  bool hidden_ = false;
};

/// Nothing that was launched up to here still runs.
void end_of_launches();
/// What a launch must not see early; null if it begins when those in front have ended.
[[nodiscard]] Changes* changes_since_ordinary_launch(bool programmatic);

}  // namespace quaver::simt
