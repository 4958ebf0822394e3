// What append_kv(), read_back() and copy_page() refuse: by name, and before anything is written.
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "append_case.h"
#include "kv_cache/scales.h"

namespace quaver {
namespace {

using testing::AppendCase;

constexpr KvLayout kSmall{.num_kv_heads = 2, .head_dim_k = 64, .head_dim_v = 96, .page_size = 16};

/// Runs an append that must be refused with a message that holds `text`, and must not write.
void expect_refused(AppendCase& append, const std::string& text, const std::function<void(AppendArgs&)>& spoil = {}) {
  const std::vector<uint8_t> before = append.pages;
  AppendArgs args = append.args();
  if (spoil) spoil(args);
  try {
    append_kv(args);
    FAIL() << "accepted: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
  EXPECT_EQ(append.pages, before);
}

// B12 (c): padding slots write nothing, not even to block 0.
TEST(AppendChecks, SkippedTokensLeaveTheRestAlone) {
  AppendCase append(kSmall, {3, -1, -1, 7}, 2);
  const std::vector<uint8_t> expected = append.expected_pages();
  append_kv(append.args());
  EXPECT_EQ(append.pages, expected);
}

// B12 (d): a slot beyond the pool is refused, never clamped.
TEST(AppendChecks, SlotsOutOfRange) {
  for (const int64_t slot : {int64_t{32}, int64_t{-2}, int64_t{1} << 40, std::numeric_limits<int64_t>::max(),
                             std::numeric_limits<int64_t>::min()}) {
    AppendCase append(kSmall, {0, 1, slot}, 2);
    expect_refused(append, "slots[2] " + std::to_string(slot) + ": expected -1 (skip) or 0 to 31");
  }
  AppendCase last(kSmall, {31}, 2);
  EXPECT_NO_THROW(append_kv(last.args()));
}

TEST(AppendChecks, SlotsGivenTwice) {
  AppendCase neighbours(kSmall, {4, 5, 5}, 2);
  expect_refused(neighbours, "slot 5: expected every slot once");
  AppendCase apart(kSmall, {9, 30, 2, -1, -1, 17, 9}, 2);
  expect_refused(apart, "slot 9: expected every slot once");
  std::vector<int64_t> many;
  for (int64_t i = 4095; i >= 0; --i) many.push_back(i);
  many.push_back(1234);
  AppendCase large({.num_kv_heads = 1, .head_dim_k = 16, .head_dim_v = 16, .page_size = 128}, many, 32);
  expect_refused(large, "slot 1234: expected every slot once");
  large.slots.back() = -1;
  EXPECT_NO_THROW(append_kv(large.args()));
}

// B06: scales that no cache can have, by name, element and value.
TEST(AppendChecks, Scales) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<std::pair<float, std::string>> bad{
      {0.0F, "0"},       {-1.0F, "-1"},       {std::numeric_limits<float>::quiet_NaN(), "nan"},
      {infinity, "inf"}, {-infinity, "-inf"}, {0x1p-127F, "5.87747e-39"}};
  for (const auto& [value, text] : bad) {
    AppendCase append(kSmall, {0, 1}, 2);
    append.k_scale = {1.0F, value};
    expect_refused(append, "k_scale[1] " + text + ": expected a positive finite scale");
    append.k_scale = {};
    append.v_scale = {value, 1.0F};
    expect_refused(append, "v_scale[0] " + text + ": expected a positive finite scale");
  }
  AppendCase short_scale(kSmall, {0}, 2);
  short_scale.v_scale = {1.0F};
  expect_refused(short_scale, "v_scale f32[1] on cpu: expected f32[2]");
}

TEST(AppendChecks, ShapesTypesAndPlaces) {
  AppendCase append(kSmall, {0, 1, 2}, 2);
  const Device gpu{.kind = Device::Kind::kCuda, .index = 0};
  expect_refused(append, "k f16[3, 2, 64]", [](AppendArgs& a) { a.k.dtype = DType::kF16; });
  expect_refused(append, "k f32[2, 2, 64] on cpu: expected [3, 2, 64]", [](AppendArgs& a) { a.k.shape[0] = 2; });
  expect_refused(append, "v f32[3, 1, 96] on cpu: expected [3, 2, 96]", [](AppendArgs& a) { a.v.shape[1] = 1; });
  expect_refused(append, "v f32[3, 2, 80]", [](AppendArgs& a) { a.v.shape[2] = 80; });
  expect_refused(append, "v last stride 2", [](AppendArgs& a) { a.v.strides[2] = 2; });
  expect_refused(append, "k not given", [](AppendArgs& a) { a.k.data = nullptr; });
  expect_refused(append, "k f32[3, 2, 64] on cuda:0", [&](AppendArgs& a) { a.k.device = gpu; });
  expect_refused(append, "slots i32[3]", [](AppendArgs& a) { a.slots.dtype = DType::kI32; });
  expect_refused(append, "slots not given", [](AppendArgs& a) { a.slots.data = nullptr; });
  expect_refused(append, "pages u8[2, 5119]", [](AppendArgs& a) { a.pages.shape[1] = 5119; });
  expect_refused(append, "pages not given", [](AppendArgs& a) { a.pages = {}; });
  expect_refused(append, "pages bf16", [](AppendArgs& a) { a.pages.dtype = DType::kBF16; });
  expect_refused(append, "page size 48", [](AppendArgs& a) { a.layout.page_size = 48; });
}

// B20: an address that no float can have is refused, not read.
TEST(AppendChecks, MisalignedRows) {
  AppendCase append(kSmall, {0, 1, 2}, 2);
  for (const int shift : {1, 2, 3}) {
    expect_refused(append, "k address: expected a multiple of 4 bytes",
                   [&](AppendArgs& a) { a.k.data = static_cast<const char*>(a.k.data) + shift; });
  }
}

class ReadBack : public ::testing::Test {
 protected:
  /// The message of the refused read, or "accepted".
  std::string refusal(const std::vector<int32_t>& table, int64_t length) {
    try {
      (void)read_back(kSmall, append_.args().pages, table, length, {}, {});
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }
  AppendCase append_{kSmall, {0}, 7};
};

// B12 (d): a page id beyond the pool inside the used range is refused.
TEST_F(ReadBack, RefusesPagesOutOfRangeAndShortTables) {
  EXPECT_EQ(refusal({0, 6}, 32), "accepted");
  EXPECT_NE(refusal({0, 7}, 32).find("block_table[1] 7: expected -1 to 6"), std::string::npos);
  EXPECT_NE(refusal({-2, 6}, 32).find("block_table[0] -2"), std::string::npos);
  EXPECT_NE(refusal({0, 6}, 33).find("length 33"), std::string::npos);
  EXPECT_NE(refusal({0, 6}, -1).find("length -1"), std::string::npos);
}

// B12 (a), (b): the same tokens on other pages, block id 0 among them, read the same; entries past the end are not
// read.
TEST_F(ReadBack, DoesNotDependOnPageIdsOrOnUnusedEntries) {
  std::vector<int64_t> first, second;
  for (int64_t i = 0; i < 27; ++i) {
    first.push_back(i);        // pages 0, 1
    second.push_back(80 + i);  // pages 5, 6
  }
  AppendCase a(kSmall, first, 7, 5);
  AppendCase b(kSmall, second, 7, 5);
  append_kv(a.args());
  append_kv(b.args());
  const NaturalKv at_0 = read_back(kSmall, a.args().pages, std::vector<int32_t>{0, 1}, 27, {}, {});
  for (const int32_t unused : {-1, std::numeric_limits<int32_t>::max(), -12345}) {
    const NaturalKv at_5 = read_back(kSmall, b.args().pages, std::vector<int32_t>{5, 6, unused, unused}, 27, {}, {});
    EXPECT_EQ(at_0.k, at_5.k);
    EXPECT_EQ(at_0.v, at_5.v);
  }
}

TEST_F(ReadBack, TokensLeftOfTheWindowAreZeros) {
  const NaturalKv kv = read_back(kSmall, append_.args().pages, std::vector<int32_t>{-1, 3}, 20, {}, {});
  EXPECT_TRUE(std::all_of(kv.k.begin(), kv.k.begin() + 16 * 2 * 64, [](float x) { return x == 0.0F; }));
  EXPECT_TRUE(std::any_of(kv.k.begin() + 16 * 2 * 64, kv.k.end(), [](float x) { return x != 0.0F; }));
}

TEST(CopyPage, CopiesOnePageAndRefusesOthers) {
  AppendCase append(kSmall, {0}, 4);
  std::vector<uint8_t> expected = append.pages;
  std::copy_n(append.pages.begin() + 3 * append.page_stride, append.page_stride,
              expected.begin() + 1 * append.page_stride);
  const TensorView pages = append.args().pages;
  copy_page(pages, 3, 1);
  EXPECT_EQ(append.pages, expected);
  copy_page(pages, 2, 2);
  EXPECT_EQ(append.pages, expected);
  EXPECT_THROW(copy_page(pages, 4, 0), Error);
  EXPECT_THROW(copy_page(pages, 0, -1), Error);
}

}  // namespace
}  // namespace quaver
