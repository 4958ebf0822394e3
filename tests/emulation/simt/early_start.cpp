#include "simt/early_start.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "core/check.h"
#include "simt/device_memory.h"

namespace quaver::simt {
namespace {

constexpr size_t kBlockBytes = 1024;

bool active = false;
std::optional<MemoryImage> before;  // of the last ordinary launch
std::optional<Changes> changes;

}  // namespace

EarlyStart::EarlyStart() {
  active = true;
}
EarlyStart::~EarlyStart() {
  active = false;
  end_of_launches();
}

Changes::Changes(const MemoryImage& before) {
  for (const auto& [memory, old] : before) {
    if (!in_device_memory(memory, static_cast<int>(old.size()))) continue;  // given back since
    for (size_t at = 0; at < old.size(); at += kBlockBytes) {
      const size_t bytes = std::min(kBlockBytes, old.size() - at);
      const uint8_t* const then = old.data() + at;
      if (std::memcmp(then, memory + at, bytes) != 0) blocks_.push_back({memory + at, {then, then + bytes}});
    }
  }
}

void Changes::hide() {
  for (Block& block : blocks_) {
    block.now.assign(block.begin, block.begin + block.before.size());
    std::ranges::copy(block.before, block.begin);
  }
  hidden_ = true;
}

void Changes::show() {
  hidden_ = false;
  bool written = false;
  for (const Block& block : blocks_) {
    written = written || std::memcmp(block.begin, block.before.data(), block.before.size()) != 0;
    std::ranges::copy(block.now, block.begin);
  }
  check_as(ErrorKind::kCuda, !written, "griddepcontrol.wait: expected nothing to be written before");
}

void end_of_launches() {
  before.reset();
  changes.reset();
}

Changes* changes_since_ordinary_launch(bool programmatic) {
  if (!active) return nullptr;
  if (programmatic && before) return &changes.emplace(*before);
  before = memory_image();
  return nullptr;
}

}  // namespace quaver::simt
