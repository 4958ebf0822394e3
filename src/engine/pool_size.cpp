#include "engine/pool_size.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "core/check.h"

namespace quaver {
namespace {

/// The number that a file of the kernel starts with; `fallback` for "max" and for no such file.
int64_t number_in(const char* path, int64_t fallback) {
  std::ifstream file(path);
  int64_t value = 0;
  return file >> value ? value : fallback;
}

}  // namespace

int64_t available_host_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string name;
  std::string unit;
  int64_t kilobytes = 0;
  while (meminfo >> name >> kilobytes && name != "MemAvailable:") std::getline(meminfo, unit);
  check_as(ErrorKind::kIo, name == "MemAvailable:", "/proc/meminfo: expected a line MemAvailable");
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  const int64_t limit = number_in("/sys/fs/cgroup/memory.max", kNone);
  const int64_t left = limit == kNone ? kNone : limit - number_in("/sys/fs/cgroup/memory.current", 0);
  return std::min(kilobytes * 1024, std::max<int64_t>(0, left));
}

int64_t pool_pages(const CachePlan& plan, const PoolLimits& limits) {
  const int64_t least = std::ssize(plan.groups) * plan.block_bytes();
  int64_t bytes = limits.cache_bytes;
  check(bytes >= 0, "kv_cache_memory_bytes ", bytes, ": expected >= 0");
  if (bytes > 0) {
    check(bytes >= least, "kv_cache_memory_bytes ", bytes, ": expected at least ", least, ", a block of ",
          plan.block_bytes(), " bytes for each of ", plan.groups.size(), " cache groups");
  } else {
    check(limits.memory_utilization > 0 && limits.memory_utilization <= 1, "gpu_memory_utilization ",
          limits.memory_utilization, ": expected in (0, 1]");
    bytes = static_cast<int64_t>(limits.memory_utilization * static_cast<double>(limits.available_bytes));
    check(bytes >= least, "gpu_memory_utilization ", limits.memory_utilization, " of ", limits.available_bytes,
          " available bytes: expected at least ", least, " bytes, a block for each of ", plan.groups.size(),
          " cache groups");
  }
  const int64_t most = std::numeric_limits<int32_t>::max();  // page ids are 32-bit
  const int64_t blocks = plan.blocks_for(limits.max_model_len, limits.step_tokens);
  const int64_t useful = blocks > most / limits.max_num_seqs ? most : blocks * limits.max_num_seqs;
  return std::min(bytes / plan.block_bytes(), useful);
}

}  // namespace quaver
