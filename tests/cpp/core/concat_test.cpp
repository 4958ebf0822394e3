// Text of values, for messages and names of tensors.
#include "core/concat.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <locale>
#include <string>

namespace quaver {
namespace {

TEST(Concat, TextAndNumbers) {
  const std::string text = "text";
  EXPECT_EQ(concat(), "");
  EXPECT_EQ(concat("a ", text, ' ', std::string_view("view")), "a text view");
  EXPECT_EQ(concat(0, " ", -1, " ", uint8_t{65}, " ", std::numeric_limits<int64_t>::min(), " ",
                   std::numeric_limits<uint64_t>::max()),
            "0 -1 65 -9223372036854775808 18446744073709551615");
  EXPECT_EQ(concat(true, false), "10");
  EXPECT_EQ(concat(0.5F, " ", 1e30, " ", 1.0 / 3, " ", 16.0), "0.5 1e+30 0.333333 16");
  EXPECT_EQ(concat(std::numeric_limits<float>::infinity(), " ", std::numeric_limits<double>::quiet_NaN()), "inf nan");
  EXPECT_EQ(concat(reinterpret_cast<const void*>(uintptr_t{0xABC0})), "0xabc0");
  EXPECT_EQ(hexadecimal(std::numeric_limits<uint64_t>::max()), "0xffffffffffffffff");
  EXPECT_EQ(fixed_point(-2.125, 2), "-2.12");
  EXPECT_EQ(fixed_point(std::numeric_limits<double>::max(), 2).size(), 309U + 3);
}

/// Digits in groups and a decimal comma.
class Grouped : public std::numpunct<char> {
  char do_thousands_sep() const override { return '.'; }
  char do_decimal_point() const override { return ','; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(Concat, TheProcesssLocaleChangesNothing) {
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new Grouped));
  EXPECT_EQ(concat("layers.", 1234567, " ", 0.5), "layers.1234567 0.5");
  EXPECT_EQ(fixed_point(1234.5, 1), "1234.5");
  std::locale::global(before);
}

}  // namespace
}  // namespace quaver
