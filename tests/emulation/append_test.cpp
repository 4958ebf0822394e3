// The append kernels write the bytes that the CPU's append_kv() writes, and no others.
#include <gtest/gtest.h>

#include "../gpu/append_device.h"
#include "simt/launch.h"

namespace quaver::testing {
namespace {

KvLayout layout_of(KvDtype dtype, int dim, int page_size) {
  return {.dtype = dtype, .num_kv_heads = 2, .head_dim_k = dim, .head_dim_v = dim, .page_size = page_size};
}

TEST(Append, RowsOfDecode) {
  for (const KvDtype dtype : {KvDtype::kE4M3, KvDtype::kBF16}) {
    for (const int dim : {64, 272}) {
      DeviceAppend append(layout_of(dtype, dim, 16), shuffled(13, 64, 3), 4);
      append.slots[5] = -1;
      append.k_scale = {0.5F, 0.3F};
      append.v_scale = {2.0F, 1.7F};
      EXPECT_EQ(append.on_gpu(), append.on_cpu());
    }
  }
}

TEST(Append, TilesOfPrefill) {
  std::vector<int64_t> slots = consecutive(7, 530);
  for (const size_t skipped : {40, 200, 201, 529}) slots[skipped] = -1;
  const DeviceAppend append(layout_of(KvDtype::kE4M3, 64, 32), slots, 17);
  const std::vector<uint8_t> expected = append.on_cpu();
  EXPECT_EQ(append.on_gpu(), expected);
  const simt::RandomOrder order(1);
  EXPECT_EQ(append.on_gpu(), expected);
}

}  // namespace
}  // namespace quaver::testing
