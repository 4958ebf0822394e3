// DirectAttention on the CPU: every form, dtype and memory order against the oracle, the pages it packs against
// append_kv, and what it refuses.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "attention/direct/pack.h"
#include "kv_cache/page_format.h"
#include "testing/direct_case.h"
#include "testing/expect_error.h"
#include "testing/metric.h"
#include "testing/random.h"

namespace quaver {
namespace {

using direct::first_page;
using direct::num_scratch_pages;
using direct::Sequences;
using testing::direct_specs;
using testing::DirectCase;
using testing::DirectSpec;

class DirectForms : public ::testing::TestWithParam<DirectSpec> {};

TEST_P(DirectForms, EqualTheOracle) {
  DirectCase call(GetParam());
  DirectAttention attention({});
  attention.run(call.problem, call.args);
  const OracleOutput expected = call.expected();
  const testing::Tolerance limit = testing::tolerance(Precision::kFull, GetParam().out);
  EXPECT_TRUE(testing::close_to<float>(call.out_values(), expected.out, GetParam().head_dim_v, limit));
  EXPECT_TRUE(testing::lse_close_to<float>(call.lse, expected.lse, limit));
  // Again, behind a call that leaves other bytes in the workspace: the same bits.
  const std::vector<uint8_t> first = call.out_bytes;
  DirectSpec other = GetParam();
  other.seed += 100;
  for (auto* const lens : {&other.query_lens, &other.key_lens}) {
    for (int32_t& len : *lens) len += 40;
  }
  DirectCase in_between(other);
  attention.run(in_between.problem, in_between.args);
  call.poison_outputs();
  attention.run(call.problem, call.args);
  EXPECT_EQ(call.out_bytes, first);
}

INSTANTIATE_TEST_SUITE_P(Specs, DirectForms, ::testing::ValuesIn(direct_specs()));

// Sequences begin pages of their own, in order, inside the scratch, whatever their lengths.
TEST(DirectPages, EverySequenceHasItsOwn) {
  testing::Random random(5);
  for (int round = 0; round < 2000; ++round) {
    const int page_size = 16 << random.below(4);
    std::vector<int32_t> starts{static_cast<int32_t>(random.below(3) * random.below(50))};
    const int64_t count = random.below(6);
    for (int64_t b = 0; b < count; ++b) {
      const int64_t whole = random.below(4) * page_size;  // around page boundaries
      const int64_t length = random.below(3) == 0 ? random.below(3) : std::max<int64_t>(0, whole + random.below(3) - 1);
      starts.push_back(starts.back() + static_cast<int32_t>(length));
    }
    const Sequences keys{.starts = starts.data(), .count = count};
    int64_t next = 0;
    for (int64_t b = 0; b < count; ++b) {
      const int64_t first = first_page(keys, b, page_size);
      const int64_t pages = (keys.length(b) + page_size - 1) / page_size;
      ASSERT_GE(first, next);
      next = first + pages;
      for (int64_t page = first; page < next; ++page) ASSERT_EQ(sequence_of_page(keys, page, page_size), b);
    }
    ASSERT_LE(next, num_scratch_pages(starts.back(), count, page_size));
  }
}

TEST(DirectPages, EqualLengthsAreStarts) {
  const std::vector<int32_t> starts{0, 37, 74, 111};
  const Sequences listed{.starts = starts.data(), .count = 3};
  const Sequences equal{.equal_length = 37, .count = 3};
  for (int64_t b = 0; b < 3; ++b) {
    EXPECT_EQ(first_page(listed, b, 16), first_page(equal, b, 16));
    EXPECT_EQ(listed.length(b), equal.length(b));
  }
}

/// Pages as append_kv() writes them, in the places of a direct call.
std::vector<uint8_t> appended(const DirectCase& call, int64_t num_pages) {
  const KvLayout& layout = call.problem.kv;
  const int64_t bytes = page_format::page_bytes(layout);
  std::vector<uint8_t> pages(static_cast<size_t>(num_pages * bytes));
  const Sequences keys{.starts = call.key_start.data(), .count = std::ssize(call.key_start) - 1};
  std::vector<int64_t> slots;
  for (int64_t b = 0; b < keys.count; ++b) {
    for (int64_t token = 0; token < keys.length(b); ++token) {
      slots.push_back(first_page(keys, b, layout.page_size) * layout.page_size + token);
    }
  }
  append_kv({.layout = layout,
             .k = call.args.k,
             .v = call.args.v,
             .slots = {slots.data(), DType::kI64, {std::ssize(slots)}},
             .k_scale = call.args.k_scale,
             .v_scale = call.args.v_scale,
             .pages = {pages.data(), DType::kU8, {num_pages, bytes}}});
  return pages;
}

TEST(DirectPages, HoldTheBytesOfAppend) {
  for (const DType rows : {DType::kBF16, DType::kF32}) {
    for (const KvDtype stored : {KvDtype::kE4M3, KvDtype::kBF16}) {
      DirectCase call({.query_lens = {1, 1, 1},
                       .key_lens = {70, 0, 33},
                       .num_q_heads = 2,
                       .num_kv_heads = 2,
                       .head_dim_k = 48,
                       .head_dim_v = 32,
                       .k = rows,
                       .v = rows,
                       .stored = stored,
                       .page_size = 32,
                       .scales = true});
      const int64_t num_pages = num_scratch_pages(103, 3, 32);
      std::vector<uint8_t> pages(static_cast<size_t>(num_pages * page_format::page_bytes(call.problem.kv)));
      direct::pack_kv({.layout = call.problem.kv,
                       .k = direct::source_of(call.args.k),
                       .v = direct::source_of(call.args.v),
                       .keys = {.starts = call.key_start.data(), .count = 3},
                       .k_scale = call.k_scale.data(),
                       .k_scale_stride = 1,
                       .v_scale = call.v_scale.data(),
                       .v_scale_stride = 1,
                       .pages = pages.data(),
                       .num_keys = 103});
      EXPECT_EQ(pages, appended(call, num_pages));
    }
  }
}

TEST(DirectElements, CodesStayAndWidenExactly) {
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    EXPECT_EQ(direct::to_code(byte, 3.0F), byte);
    const float value = e4m3_decode(byte);
    const float widened = to_float(direct::to_bf16_element(byte, 3.0F));
    EXPECT_TRUE(widened == value || (std::isnan(widened) && std::isnan(value))) << code;
  }
  EXPECT_EQ(direct::to_bf16_element(std::bit_cast<float>(0x7F812345U), 2.0F).bits, 0x7FC1);
  EXPECT_EQ(direct::to_bf16_element(Bf16{0xFF81}, 2.0F).bits, 0xFFC1);
  EXPECT_EQ(direct::to_bf16_element(1.5F, 2.0F).bits, to_bf16(3.0F).bits);
}

// A varlen call of equal lengths and the batched one are the same call.
TEST(Direct, BatchedEqualsVarlen) {
  DirectSpec spec{.query_lens = {20, 20}, .key_lens = {50, 50}, .num_q_heads = 4, .num_kv_heads = 2};
  DirectCase varlen(spec);
  spec.batched = true;
  DirectCase batched(spec);
  DirectAttention attention({});
  attention.run(varlen.problem, varlen.args);
  attention.run(batched.problem, batched.args);
  EXPECT_EQ(varlen.out_bytes, batched.out_bytes);
  EXPECT_EQ(varlen.lse, batched.lse);
}

// The FP8 kernels' arithmetic through the same entry, by the plan.
TEST(Direct, PrecisionSingleIsEmulated) {
  DirectCase call({.query_lens = {40}, .key_lens = {200}, .num_q_heads = 2});
  call.problem.precision = Precision::kSingle;
  DirectAttention attention({});
  attention.run(call.problem, call.args);
  const testing::Deviation error = testing::deviation<float>(call.out_values(), call.expected().out, 64);
  EXPECT_LE(error.relative_l2, 6e-2);
  EXPECT_GE(error.relative_l2, 5e-3);
}

TEST(Direct, NothingToDo) {
  DirectAttention attention({});
  for (const bool keys : {false, true}) {
    DirectCase empty({.query_lens = {0, 0}, .key_lens = {keys ? 5 : 0, 0}});
    attention.run(empty.problem, empty.args);
  }
  DirectCase none({.query_lens = {}, .key_lens = {}});
  attention.run(none.problem, none.args);
}

// E4M3 Q loses nothing in `single`: its scale is a power of two, and codes have the four bits that E4M3 keeps.
TEST(Direct, CodesOfQLoseNothing) {
  DirectCase codes({.query_lens = {9}, .key_lens = {64}, .q = DType::kE4M3});
  std::vector<Bf16> wide;
  for (const float value : codes.q.values.front()) wide.push_back(to_bf16(value));
  DirectAttention attention({});
  for (const Precision precision : {Precision::kSingle, Precision::kSplit, Precision::kFull}) {
    codes.problem.precision = precision;
    attention.run(codes.problem, codes.args);
    const std::vector<uint8_t> expected = codes.out_bytes;
    DirectAttentionArgs args = codes.args;
    args.q = {wide.data(), DType::kBF16, {9, 1, 64}};
    codes.poison_outputs();
    attention.run(codes.problem, args);
    EXPECT_EQ(codes.out_bytes, expected);
  }
}

void expect_refused(void (*change)(DirectCase&), std::initializer_list<std::string_view> parts,
                    ErrorKind kind = ErrorKind::kInvalidArgument, bool batched = false) {
  DirectCase call({.query_lens = {4, 4}, .key_lens = {6, 6}, .batched = batched, .num_q_heads = 2, .scales = true});
  change(call);
  DirectAttention attention({});
  testing::expect_error([&] { attention.run(call.problem, call.args); }, kind, parts);
}

TEST(Direct, RefusesByName) {
  expect_refused([](DirectCase& c) { c.args.q.rank = 2; }, {"q bf16[8, 2]", "[tokens, heads, dim]"});
  expect_refused([](DirectCase& c) { c.args.q.dtype = DType::kF16; }, {"q f16[8, 2, 64]", "bf16, f32, e4m3 or u8"});
  expect_refused([](DirectCase& c) { c.args.k.dtype = DType::kI32; }, {"k i32[12, 1, 64]"});
  expect_refused([](DirectCase& c) { c.args.q.shape[1] = 3; }, {"q bf16[8, 3, 64]", "2 heads of dim 64"});
  expect_refused([](DirectCase& c) { c.args.v.shape[0] = 11; }, {"v e4m3[11, 1, 64]", "the 12 tokens of k"});
  expect_refused([](DirectCase& c) { c.args.v.shape[2] = 48; }, {"v e4m3[12, 1, 48]", "1 heads of dim 64"});
  expect_refused([](DirectCase& c) { c.args.k.data = nullptr; }, {"k not given", "a tensor"});
  expect_refused([](DirectCase& c) { c.args.k.device = {Device::Kind::kCuda, 1}; },
                 {"k", "on cuda:1", "a tensor on cpu"});
  expect_refused([](DirectCase& c) { c.args.query_start = {}; }, {"query_start", "i32 [sequences + 1]"});
  expect_refused([](DirectCase& c) { c.args.key_start.shape[0] = 2; }, {"key_start i32[2]", "as many starts", "3"});
  expect_refused([](DirectCase& c) { c.query_start[2] = 9; }, {"query_start[2] 9", "4 to 8"});
  expect_refused([](DirectCase& c) { c.key_start[1] = -1; }, {"key_start[1] -1", "0 to 12"});
  expect_refused([](DirectCase& c) { c.key_start[2] = 3; }, {"key_start[2] 3", "6 to 12"});
  expect_refused([](DirectCase& c) { c.problem.max_query_len = 3; }, {"query tokens of sequence 0 4", "at most 3"});
  expect_refused([](DirectCase& c) { c.args.out.shape[0] = 7; }, {"out f32[7, 2, 64]", "the tokens of q"});
  expect_refused([](DirectCase& c) { c.args.out.shape[2] = 32; }, {"out f32[8, 2, 32]"});
  expect_refused([](DirectCase& c) { c.args.out = {}; }, {"out"});
  expect_refused([](DirectCase& c) { c.args.out.strides[2] = 2; }, {"out stride 2 of the last dimension"});
  expect_refused([](DirectCase& c) { c.args.lse.dtype = DType::kBF16; }, {"lse bf16[8, 2]", "f32"});
  expect_refused([](DirectCase& c) { c.args.k_scale.shape[0] = 2; }, {"k_scale f32[2]"});
  expect_refused([](DirectCase& c) { c.v_scale[0] = 0.0F; }, {"v_scale[0] 0"});
  expect_refused([](DirectCase& c) { c.problem.sinks = true; }, {"sinks"});
  expect_refused([](DirectCase& c) { c.problem.num_q_heads = 0; }, {"num_q_heads 0"}, ErrorKind::kUnsupported);
  expect_refused([](DirectCase& c) { c.problem.kernel = AttentionKernel::kGeneral; }, {"general", "architecture"},
                 ErrorKind::kUnsupported);
}

TEST(Direct, RefusesBatchesByName) {
  constexpr ErrorKind kKind = ErrorKind::kInvalidArgument;
  expect_refused([](DirectCase& c) { c.args.query_start = {c.query_start.data(), DType::kI32, {3}}; },
                 {"query_start", "none beside q of rank 4"}, kKind, true);
  expect_refused([](DirectCase& c) { c.args.k.shape[0] = 1; }, {"k e4m3[1, 6, 1, 64]", "the batch of q, 2"}, kKind,
                 true);
  expect_refused([](DirectCase& c) { c.args.k.rank = 3; }, {"k", "[batch, tokens, heads, dim] as q"}, kKind, true);
  expect_refused([](DirectCase& c) { c.args.out.strides[0] += 1; }, {"out", "follow each other"}, kKind, true);
  expect_refused([](DirectCase& c) { c.problem.max_query_len = 3; }, {"q tokens of a sequence 4", "at most 3"}, kKind,
                 true);
}

TEST(Direct, AGpuNeedsABuildWithCuda) {
  EXPECT_THROW(DirectAttention({.kind = Device::Kind::kCuda, .index = 99}), Error);  // or the GPU itself
}

}  // namespace
}  // namespace quaver
