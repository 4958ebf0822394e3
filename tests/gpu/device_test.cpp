// Facts about the device that the kernels rely on.
#include <gtest/gtest.h>

#include "core/device_info.h"
#include "quaver/error.h"

namespace quaver {
namespace {

TEST(Device, IsHopper) {
  const DeviceInfo device = query_device(0);
  EXPECT_EQ(device.arch, 90) << device.name;
  EXPECT_GT(device.num_sms, 0);
  EXPECT_GE(device.shared_bytes_per_sm, 228 * 1024);
  EXPECT_GE(device.shared_bytes_per_cta, 227 * 1024);
}

TEST(Device, UnknownIndexIsAnError) {
  EXPECT_THROW(static_cast<void>(query_device(99)), Error);
}

}  // namespace
}  // namespace quaver
