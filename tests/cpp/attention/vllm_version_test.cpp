// The source system's version rule, as a table: vllm.md section 1.1 rules 0 to 9 and row S2 of the mission.
#include "attention/vllm_version.h"

#include <gtest/gtest.h>

namespace quaver {
namespace {

using Query = VllmVersionQuery;
using Platform = VllmVersionQuery::Platform;

Query hopper(int head_size, bool fp8 = true) {
  Query query{.explicit_version = {}, .head_size = head_size, .head_size_v = head_size};
  query.kv_cache_e4m3 = fp8;
  return query;
}

Query device(int major, std::optional<int> head_size = std::nullopt, std::optional<int> head_size_v = std::nullopt) {
  return {.capability_major = major, .explicit_version = {}, .head_size = head_size, .head_size_v = head_size_v};
}

template <class Change>
Query with(Query query, Change change) {
  change(query);
  return query;
}

struct Row {
  const char* rule;
  Query query;
  std::optional<int> version;
};

TEST(VllmVersion, Table) {
  const std::optional<int> none;
  const Row rows[] = {
      {"rule 0", with(device(9), [](Query& q) { q.platform = Platform::kXpu; }), 2},
      {"rule 0", with(device(9), [](Query& q) { q.platform = Platform::kRocm; }), none},
      {"rule 1", device(8), 2},
      {"rule 1", device(9), 3},
      {"rule 1", device(10), 4},
      {"rule 1", device(12), 2},
      {"rule 1", with(device(9), [](Query& q) { q.fa3_available = false; }), 2},
      {"rule 1", with(device(10), [](Query& q) { q.fa4_available = false; }), 2},
      {"rule 2", with(device(9), [](Query& q) { q.explicit_version = 2; }), 2},
      {"rule 2", with(device(9), [](Query& q) { q.explicit_version = 4; }), 4},
      {"rule 3", with(device(10), [](Query& q) { q.explicit_version = 3; }), 4},
      {"rule 3", with(device(10), [](Query& q) { q.explicit_version = 3, q.fa4_available = false; }), 2},
      {"rule 4", with(device(9), [](Query& q) { q.requires_alibi = true; }), 2},
      {"rule 4", with(device(10), [](Query& q) { q.requires_alibi = true; }), 2},
      {"rule 5a", device(9, 512, 512), 4},
      {"rule 1", device(9, 256, 256), 3},
      {"rule 5a", with(device(9, 512), [](Query& q) { q.explicit_version = 3; }), 4},  // 5a overrides an explicit 3
      {"rule 1", with(device(9, 512), [](Query& q) { q.fa4_available = false; }), 3},
      {"rule 5b", with(device(9, 192, 128), [](Query& q) { q.has_sinks = true; }), 4},
      {"rule 1", device(9, 192, 128), 3},
      {"rule 1", with(device(9, 128, 128), [](Query& q) { q.has_sinks = true; }), 3},
      {"rule 5c", with(device(9, 128), [](Query& q) { q.is_diffusion = true; }), 4},
      // S2, November 2026
      {"rule 5d", hopper(64), 4},
      {"rule 5d", hopper(96), 4},
      {"rule 5d", hopper(128), 4},
      {"rule 5d", hopper(192), 4},
      {"rule 5d", hopper(256), 4},
      {"rule 1", hopper(80), 3},
      {"rule 5a", hopper(512), 4},
      {"rule 1", hopper(256, false), 3},
      {"rule 1", with(hopper(192), [](Query& q) { q.head_size_v = 128; }), 3},
      {"rule 1", with(hopper(192), [](Query& q) { q.head_size_v = std::nullopt; }), 3},
      {"rule 1", with(hopper(256), [](Query& q) { q.softcap = true; }), 3},
      {"rule 1", with(hopper(256), [](Query& q) { q.batch_invariant = true; }), 3},
      {"rule 1", with(hopper(256), [](Query& q) { q.fa4_available = false; }), 3},
      {"rule 2", with(hopper(256), [](Query& q) { q.explicit_version = 3; }), 3},  // explicit is kept
      {"rule 2", with(hopper(256), [](Query& q) { q.explicit_version = 2; }), 2},
      {"rule 4", with(hopper(256), [](Query& q) { q.requires_alibi = true; }), 2},
      // after the upgrade
      {"rule 6", with(hopper(512), [](Query& q) { q.batch_invariant = true; }), 2},
      {"rule 7", device(10, 256, 256), 2},
      {"rule 8", device(10, 192, 192), 2},
      {"rule 1", device(10, 192, 128), 4},
      {"rule 1", device(10, 128, 128), 4},
      {"rule 9", device(7), none},
      {"rule 9", with(device(8), [](Query& q) { q.explicit_version = 3; }), none},
      {"rule 9", with(device(8), [](Query& q) { q.explicit_version = 4; }), none},
      {"rule 9", with(device(12), [](Query& q) { q.explicit_version = 4; }), none},
      {"rule 9", with(device(9), [](Query& q) { q.explicit_version = 4, q.fa4_available = false; }), none},
  };
  for (const Row& row : rows) {
    const VllmVersion result = vllm_flash_attention_version(row.query);
    const auto index = &row - rows;
    EXPECT_EQ(result.version, row.version) << "row " << index << ": " << result.reason;
    EXPECT_EQ(result.reason.substr(0, std::string(row.rule).size()), row.rule) << "row " << index;
  }
}

}  // namespace
}  // namespace quaver
