// run_attention() refuses what does not fit, names it, and has written nothing by then.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "attention/cpu_run.h"
#include "testing/metric.h"

namespace quaver::testing {
namespace {

CaseSpec spec() {
  return {.query_lens = {3, 1},
          .kv_lens = {40, 17},
          .num_q_heads = 4,
          .kv = {.num_kv_heads = 2, .head_dim_k = 64, .head_dim_v = 64, .page_size = 16},
          .window = 24};
}

// Runs the case with `change` applied and expects an Error(kInvalidArgument) whose text has every part.
void expect_refused(const std::function<void(Case&)>& change, const std::vector<std::string>& parts) {
  Case c(spec());
  change(c);
  try {
    run_attention(c.problem, plan_or_throw(c.problem), c.args);
    FAIL() << "accepted; expected a message with " << parts.front();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument) << error.what();
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what() << "\nlacks " << part;
    }
  }
  for (const float value : c.lse) EXPECT_TRUE(std::isnan(value));
  for (const Bf16 value : c.out_bf16) EXPECT_TRUE(std::isnan(to_float(value)));
}

TEST(RunAttention, ShapesAndDtypes) {
  expect_refused([](Case& c) { c.args.q.shape[1] = 3; }, {"q bf16[4, 3, 64]", "expected shape [4, 4, 64]"});
  expect_refused([](Case& c) { c.args.q.rank = 2; }, {"q ", "rank 3"});
  expect_refused([](Case& c) { c.args.q.dtype = DType::kF16; }, {"q f16", "expected dtype bf16 or f32"});
  expect_refused([](Case& c) { c.args.q = {}; }, {"q ", "rank 3"});
  expect_refused([](Case& c) { c.args.out.shape[0] = 3; }, {"out bf16[3, 4, 64]", "[4, 4, 64]"});
  expect_refused([](Case& c) { c.args.out.data = nullptr; }, {"out (none)"});
  expect_refused([](Case& c) { c.args.lse.dtype = DType::kF64; }, {"lse f64", "expected dtype f32"});
  expect_refused([](Case& c) { c.args.pages.dtype = DType::kE4M3; }, {"pages e4m3", "expected dtype u8"});
  expect_refused([](Case& c) { c.args.pages.shape[1] -= 1; }, {"pages", "expected at least 4096 bytes a page"});
  expect_refused([](Case& c) { c.args.pages.strides[0] = 4095; }, {"pages stride 4095"});
  expect_refused([](Case& c) { c.args.block_table.dtype = DType::kI64; }, {"block_table i64"});
  expect_refused([](Case& c) { c.args.block_table.shape[0] = 1; }, {"block_table", "expected shape [2, any]"});
  expect_refused([](Case& c) { c.args.seq_lens.shape[0] = 1; }, {"expected shape"});
  expect_refused([](Case& c) { c.args.query_start.shape[0] = 2; }, {"query_start i32[2]", "expected shape [3]"});
  const float scales[4] = {1, 1, 1, 1};
  expect_refused([&](Case& c) { c.args.k_scale = {scales, DType::kF32, {4}}; }, {"k_scale f32[4]", "[2]"});
  expect_refused([&](Case& c) { c.args.v_descale = {scales, DType::kF32, {4}}; }, {"v_descale", "[2, 2]"});
  expect_refused([&](Case& c) { c.args.sinks = {scales, DType::kF32, {4}}; }, {"sinks f32[4]", "expected none"});
  expect_refused([](Case& c) { c.problem.sinks = true; }, {"sinks (none): expected [4]"});
  const int32_t ids[4] = {-1, -1, -1, -1};
  expect_refused([&](Case& c) { c.args.span_ids = {ids, DType::kI32, {4}}; }, {"span_ids", "expected none"});
}

// B20: strides and addresses that no kernel can read are refused before anything runs.
TEST(RunAttention, StridesAlignmentAndDevices) {
  expect_refused([](Case& c) { c.args.q.strides[2] = 2; }, {"q stride 2 of the last dimension: expected 1"});
  expect_refused([](Case& c) { c.args.out.strides[2] = 2; }, {"out stride 2"});
  expect_refused([](Case& c) { c.args.out.strides[0] = 0; }, {"out stride 0 of dimension 0"});
  expect_refused([](Case& c) { c.args.lse.strides[1] = 0; }, {"lse stride 0 of dimension 1"});
  expect_refused([](Case& c) { c.args.pages.strides[1] = 2; }, {"pages stride 2"});
  expect_refused([](Case& c) { c.args.q.data = static_cast<const std::byte*>(c.args.q.data) + 1; },
                 {"q address", "expected a multiple of 2"});
  expect_refused([](Case& c) { c.args.lse.data = static_cast<std::byte*>(c.args.lse.data) + 2; },
                 {"lse address", "expected a multiple of 4"});
  expect_refused([](Case& c) { c.args.q.device = {Device::Kind::kCuda, 0}; }, {"q on cuda:0: expected on cpu"});
  expect_refused([](Case& c) { c.args.pages.device = {Device::Kind::kCuda, 1}; }, {"pages", "expected on cpu"});
}

TEST(RunAttention, LengthsAndQueryStart) {
  expect_refused([](Case& c) { c.seq_lens[1] = -1; }, {"seq_lens[1] -1"});
  expect_refused([](Case& c) { c.query_start[0] = -1; }, {"query_start[0] -1"});
  expect_refused([](Case& c) { c.query_start[2] = 2; }, {"query_start[2] 2: expected at least query_start[1] 3"});
  expect_refused([](Case& c) { c.query_start[2] = 5; }, {"query_start[2] 5: expected at most the 4 rows of q"});
  expect_refused([](Case& c) { c.problem.max_query_len = 2; }, {"query tokens of sequence 0 3", "max_query_len"});
}

// B12: a page id outside the pool in the used range, and a table row narrower than the sequence.
TEST(RunAttention, PagesInUse) {
  expect_refused([](Case& c) { c.block_table[2] = static_cast<int32_t>(c.args.pages.dim(0)); },
                 {"block_table[0, 2]", "expected a page id below"});
  expect_refused([](Case& c) { c.block_table[1] = -1; }, {"block_table[0, 1] -1"});
  expect_refused([](Case& c) { c.seq_lens[0] = 1000; }, {"block_table", "63 pages for the 1000 keys of sequence 0"});
  Case c(spec());
  c.block_table[0] = -1;  // keys 0 … 15; the first row sits at position 37 and sees from key 14 on
  EXPECT_THROW(run(c), Error);
  c.problem.window = 22;  // from key 16 on
  EXPECT_NO_THROW(run(c));
}

TEST(RunAttention, EmptyBatchesDoNothing) {
  CaseSpec empty = spec();
  empty.query_lens = {0, 0};
  Case c(empty);
  c.problem.max_query_len = 1;
  EXPECT_NO_THROW(run(c));
}

TEST(RunAttention, RowsOfNoSequenceAreLeftAlone) {
  Case c(spec());
  c.query_start = {1, 2, 3};  // rows 0 and 3 belong to nobody
  run(c);
  const std::vector<float> out = c.out_values();
  for (size_t row = 0; row < 4; ++row) EXPECT_EQ(std::isnan(out[row * 256]), row == 0 || row == 3);
}

TEST(RunAttention, CudaPlansNeedTheirOwnEntry) {
  Case c(spec());
  try {
    run_attention(c.problem, {.kernel = AttentionKernel::kDecodeFp8, .precision = Precision::kSplit}, c.args);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("decode_fp8"), std::string::npos);
  }
}

// The emulation is reached through the same entry and agrees with the FP32 path within its own error.
TEST(RunAttention, RunsTheEmulation) {
  for (const Precision precision : {Precision::kSplit, Precision::kSingle}) {
    Case c(spec());
    c.problem.precision = precision;
    run(c);
    EXPECT_TRUE(close_to(std::span<const float>(c.out_values()), std::span<const double>(c.expected().out), 64,
                         tolerance(precision, DType::kBF16)));
  }
}

}  // namespace
}  // namespace quaver::testing
