// The emulation of the FP8 kernels against the float64 oracle, and what its arithmetic promises: results that do not
// depend on splits, tiles or batch-mates, bit for bit where docs/numerics.md says so.
#include "attention/cpu/emulated.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "testing/cases.h"
#include "testing/metric.h"

namespace quaver {
namespace {

using testing::Case;
using testing::CaseSpec;

struct Result {
  std::vector<float> out;
  std::vector<float> lse;
};

Result run(Case& c, const EmulationOptions& options) {
  c.poison_outputs();
  attention_emulated(c.problem, options, c.args);
  return {.out = c.out_values(), .lse = c.lse};
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

bool same_bits(const Result& a, const Result& b) {
  return same_bits(a.out, b.out) && same_bits(a.lse, b.lse);
}

double relative_l2(const std::vector<float>& a, const std::vector<float>& b) {
  const std::vector<double> reference(b.begin(), b.end());
  return testing::deviation(std::span<const float>(a), std::span<const double>(reference),
                            static_cast<int64_t>(b.size()))
      .relative_l2;
}

CaseSpec decode_spec(int head_dim) {
  return {.query_lens = {1, 1, 1, 1, 1, 1},
          .kv_lens = {1, 17, 64, 129, 0, 307},
          .num_q_heads = 4,
          .kv = {.num_kv_heads = 2, .head_dim_k = head_dim, .head_dim_v = head_dim, .page_size = 16},
          .out_dtype = DType::kF32};
}

struct NamedSpec {
  std::string name;
  CaseSpec spec;
  int kv_tile = 64;
};

// Every feature once or twice; lengths 0, 1, primes and one off a tile; GQA 1 … 16.
std::vector<NamedSpec> specs() {
  std::vector<NamedSpec> all;
  for (const int head_dim : {64, 96, 128, 192, 256, 512}) {
    all.push_back({.name = "decode_d" + std::to_string(head_dim), .spec = decode_spec(head_dim)});
  }
  CaseSpec ragged = decode_spec(64);
  ragged.kv_lens = testing::ragged_lengths();
  ragged.query_lens.assign(ragged.kv_lens.size(), 1);
  ragged.query_lens[3] = 0;
  ragged.query_lens[5] = 7;
  all.push_back({.name = "ragged", .spec = ragged, .kv_tile = 128});
  CaseSpec prefill = decode_spec(128);
  prefill.query_lens = {13, 1, 64, 5, 3, 130};  // chunks at an offset, whole prompts, more rows than keys
  prefill.kv_lens = {150, 1, 64, 2, 0, 130};
  prefill.kv.page_size = 64;
  all.push_back({.name = "prefill", .spec = prefill, .kv_tile = 128});
  CaseSpec window = prefill;
  window.window = 37;
  all.push_back({.name = "window", .spec = window});
  CaseSpec not_causal = prefill;
  not_causal.causal = false;
  all.push_back({.name = "not_causal", .spec = not_causal});
  CaseSpec spans = window;
  spans.span_len = 9;
  all.push_back({.name = "spans", .spec = spans});
  CaseSpec softcap = prefill;
  softcap.softcap = 2.5F;
  softcap.sinks = true;
  all.push_back({.name = "softcap_sinks", .spec = softcap});
  CaseSpec scales = prefill;
  scales.scales = true;
  scales.descales = true;
  all.push_back({.name = "scales_descales", .spec = scales});
  for (const auto& [heads, kv_heads] : {std::pair{16, 1}, {9, 3}, {5, 5}, {71, 1}}) {
    CaseSpec ratio = decode_spec(64);
    ratio.num_q_heads = heads;
    ratio.kv.num_kv_heads = kv_heads;
    ratio.kv.page_size = 32;
    all.push_back({.name = "heads_" + std::to_string(heads) + "_" + std::to_string(kv_heads), .spec = ratio});
  }
  for (const auto& [dim_k, dim_v] : {std::pair{192, 128}, {64, 512}, {16, 16}, {80, 48}}) {
    CaseSpec dims = decode_spec(dim_k);
    dims.kv.head_dim_v = dim_v;
    dims.kv.page_size = 128;
    all.push_back({.name = "dims_" + std::to_string(dim_k) + "_" + std::to_string(dim_v), .spec = dims});
  }
  return all;
}

class Emulated : public ::testing::TestWithParam<NamedSpec> {};

TEST_P(Emulated, IsCloseToTheOracleAndRepeatsBitForBit) {
  Case c(GetParam().spec);
  const OracleOutput expected = c.expected();
  for (const Precision precision : {Precision::kSplit, Precision::kSingle}) {
    const EmulationOptions options{.precision = precision, .kv_tile = GetParam().kv_tile};
    const Result result = run(c, options);
    const testing::Tolerance limit = testing::tolerance(precision, DType::kF32);
    EXPECT_TRUE(testing::close_to(std::span<const float>(result.out), std::span<const double>(expected.out),
                                  c.problem.kv.head_dim_v, limit))
        << precision_name(precision);
    EXPECT_TRUE(testing::lse_close_to(std::span<const float>(result.lse), std::span<const double>(expected.lse), limit))
        << precision_name(precision);
    EXPECT_TRUE(same_bits(result, run(c, options)));
  }
}

// P*V rounds inside a tile only, so cuts between tiles change the order of FP32 sums and nothing else, but for weights
// below 2^-14 of the maximum: those are E4M3 subnormals, whose rounding knows the maximum of the split.
TEST_P(Emulated, SplitsOfAnyNumberAgree) {
  Case c(GetParam().spec);
  const EmulationOptions whole{.kv_tile = GetParam().kv_tile};
  const Result result = run(c, whole);
  for (const int num_splits : {2, 7, 23}) {  // 23: most are empty
    EmulationOptions options = whole;
    options.num_splits = num_splits;
    const Result cut = run(c, options);
    EXPECT_LT(relative_l2(cut.out, result.out), 1e-5) << num_splits;
    for (size_t row = 0; row < cut.lse.size(); ++row) {
      if (std::isinf(result.lse[row])) {
        EXPECT_EQ(cut.lse[row], result.lse[row]);
      } else {
        EXPECT_NEAR(cut.lse[row], result.lse[row], 2e-6);
      }
    }
  }
}

// B25: with fixed split boundaries a sequence alone gives the same bits as in a batch of others.
TEST_P(Emulated, BatchMatesDoNotMatter) {
  const Case batch(GetParam().spec);
  const EmulationOptions options{.kv_tile = GetParam().kv_tile, .split_tokens = 128};
  attention_emulated(batch.problem, options, batch.args);
  const int64_t heads = batch.problem.num_q_heads;
  for (int64_t b = 0; b < batch.args.seq_lens.dim(0); ++b) {
    AttentionArgs alone = batch.args;
    const int32_t first = batch.query_start[static_cast<size_t>(b)];
    const int32_t rows = batch.query_start[static_cast<size_t>(b) + 1] - first;
    const std::vector<int32_t> query_start = {0, rows};
    const auto from = [&](ConstTensorView view, int64_t index, int64_t count) {
      if (!view.given()) return view;
      view.data = static_cast<const std::byte*>(view.data) + index * view.stride(0) * dtype_bytes(view.dtype);
      view.shape[0] = count;
      return view;
    };
    alone.q = from(alone.q, first, rows);
    alone.block_table = from(alone.block_table, b, 1);
    alone.seq_lens = from(alone.seq_lens, b, 1);
    alone.query_start = ConstTensorView(query_start.data(), DType::kI32, {2});
    for (ConstTensorView* view : {&alone.q_descale, &alone.k_descale, &alone.v_descale}) *view = from(*view, b, 1);
    alone.span_ids = from(alone.span_ids, first, rows);
    const int64_t dim = batch.problem.kv.head_dim_v;
    std::vector<float> out(static_cast<size_t>(rows * heads * dim), std::nanf(""));
    std::vector<float> lse(static_cast<size_t>(rows * heads), std::nanf(""));
    alone.out = TensorView(out.data(), DType::kF32, {rows, heads, dim});
    alone.lse = TensorView(lse.data(), DType::kF32, {rows, heads});
    attention_emulated(batch.problem, options, alone);
    const auto out_begin = batch.out_f32.begin() + first * heads * dim;
    const auto lse_begin = batch.lse.begin() + first * heads;
    EXPECT_TRUE(same_bits(out, {out_begin, out_begin + rows * heads * dim})) << "sequence " << b;
    EXPECT_TRUE(same_bits(lse, {lse_begin, lse_begin + rows * heads})) << "sequence " << b;
  }
}

INSTANTIATE_TEST_SUITE_P(Features, Emulated, ::testing::ValuesIn(specs()),
                         [](const auto& spec) { return spec.param.name; });

// ---- B26: decode and prefill ---------------------------------------------------------------------------------------

// One sequence whose last row is compared with a one-row decode of the same pages.
struct DecodeAndPrefill {
  DecodeAndPrefill(int kv_len, int window) : prefill(spec(kv_len, kv_len, window)), decode(spec(1, kv_len, window)) {
    const auto row = static_cast<int64_t>(decode.q.size());
    std::copy(prefill.q_bf16.end() - row, prefill.q_bf16.end(), decode.q_bf16.begin());
    decode.args.pages = prefill.args.pages;
    decode.args.block_table = prefill.args.block_table;
  }
  static CaseSpec spec(int q_len, int kv_len, int window) {
    return {.query_lens = {q_len},
            .kv_lens = {kv_len},
            .num_q_heads = 2,
            .kv = {.num_kv_heads = 1, .head_dim_k = 128, .head_dim_v = 128, .page_size = 64},
            .window = window,
            .out_dtype = DType::kF32};
  }
  // The last row of a prefill with the given options, and a decode.
  std::pair<Result, Result> last_rows(const EmulationOptions& for_prefill, const EmulationOptions& for_decode) {
    Result whole = run(prefill, for_prefill);
    const Result one = run(decode, for_decode);
    const auto out_size = static_cast<int64_t>(one.out.size());
    const auto lse_size = static_cast<int64_t>(one.lse.size());
    return {
        {.out = {whole.out.end() - out_size, whole.out.end()}, .lse = {whole.lse.end() - lse_size, whole.lse.end()}},
        one};
  }
  Case prefill;
  Case decode;
};

// Lengths of the probe, 88 … 256: the ones around page and tile edges.
const std::vector<int> kB26Lengths = {88, 96, 97, 127, 128, 129, 192, 193, 256};

TEST(DecodeEqualsPrefill, BitForBitWithEqualTiles) {
  for (const int kv_len : kB26Lengths) {
    for (const int window : {0, 50}) {
      DecodeAndPrefill pair(kv_len, window);
      for (const Precision precision : {Precision::kSplit, Precision::kSingle}) {
        const EmulationOptions options{.precision = precision, .kv_tile = 64, .split_tokens = 128};
        const auto [prefill, decode] = pair.last_rows(options, options);
        EXPECT_TRUE(same_bits(prefill, decode)) << "kv_len " << kv_len << " window " << window;
      }
    }
  }
}

// Tiles of 64 and 128: P and the row sum are the same bits, because no rounding depends on the running maximum. With an
// accumulator that keeps FP32 over all tiles the output is the same, too. That holds for weights that are E4M3 normals
// at the time, above 2^-14 of the maximum (here: logits N(0, 1/4)); of smaller ones a relative 2e-5 remains.
TEST(DecodeEqualsPrefill, ProbabilitiesDoNotDependOnTiles) {
  for (const int kv_len : kB26Lengths) {
    for (const float softmax_scale : {0.25F / std::sqrt(128.0F), 1.0F / std::sqrt(128.0F)}) {
      DecodeAndPrefill pair(kv_len, 0);
      pair.prefill.args.softmax_scale = pair.decode.args.softmax_scale = softmax_scale;
      for (const Precision precision : {Precision::kSplit, Precision::kSingle}) {
        EmulationOptions narrow{
            .precision = precision, .accumulator = Accumulator::kFp32, .kv_tile = 64, .fresh_accumulator = false};
        EmulationOptions wide = narrow;
        wide.kv_tile = 128;
        const auto [prefill, decode] = pair.last_rows(wide, narrow);
        EXPECT_TRUE(same_bits(prefill.lse, decode.lse)) << "kv_len " << kv_len;
        if (softmax_scale < 0.05F) {
          EXPECT_TRUE(same_bits(prefill.out, decode.out)) << "kv_len " << kv_len;
        } else {
          EXPECT_LT(relative_l2(prefill.out, decode.out), 2e-5) << "kv_len " << kv_len;
        }
      }
    }
  }
}

// What remains with the hardware's accumulator: P*V of 128 tokens truncates more often than of 64. LSE stays equal.
TEST(DecodeEqualsPrefill, TilesDifferOnlyByAccumulatorTruncation) {
  double worst = 0.0;
  for (const int kv_len : kB26Lengths) {
    DecodeAndPrefill pair(kv_len, 0);
    for (const Precision precision : {Precision::kSplit, Precision::kSingle}) {
      const auto [prefill, decode] =
          pair.last_rows({.precision = precision, .kv_tile = 128}, {.precision = precision, .kv_tile = 64});
      EXPECT_TRUE(same_bits(prefill.lse, decode.lse)) << "kv_len " << kv_len;
      worst = std::max(worst, relative_l2(prefill.out, decode.out));
    }
  }
  EXPECT_LT(worst, 1.5e-3);
}

// What sets prefill and decode apart in one mode, by outputs that are more than one BF16 step apart (docs/numerics.md):
// the length of a tile, and the promotion of QK, which moves a P across a rounding edge of E4M3 now and then.
TEST(DecodeEqualsPrefill, WhatMovesOutputsByMoreThanOneStep) {
  Case host({.query_lens = {4, 4},
             .kv_lens = {1000, 300},
             .num_q_heads = 4,
             .kv = {.num_kv_heads = 1, .head_dim_k = 256, .head_dim_v = 256, .page_size = 64}});
  const auto apart = [&](EmulationOptions a, EmulationOptions b, Precision precision) {
    a.precision = b.precision = precision;
    run(host, a);
    const std::vector<Bf16> first = host.out_bf16;
    run(host, b);
    return testing::beyond_one_step(first, host.out_bf16);
  };
  for (const Precision precision : {Precision::kSingle, Precision::kSplit}) {
    const double tiles = apart({.kv_tile = 128}, {.kv_tile = 64}, precision);
    const double promotion = apart({.kv_tile = 64}, {.kv_tile = 64, .promote_qk = true}, precision);
    EXPECT_NEAR(tiles, 5.5e-3, 4.5e-3);
    EXPECT_GT(promotion, 4 * tiles);
    EXPECT_LT(promotion, precision == Precision::kSingle ? 0.15 : 0.07);
    constexpr auto kExact = Accumulator::kFp32;
    EXPECT_LT(apart({.accumulator = kExact, .kv_tile = 128}, {.accumulator = kExact, .kv_tile = 64}, precision), 1e-4);
  }
}

// B17: a prompt in chunks gives the bits of the prompt in one piece.
TEST(DecodeEqualsPrefill, ChunksGiveTheSameBits) {
  for (const int window : {0, 16}) {
    const CaseSpec spec = DecodeAndPrefill::spec(100, 100, window);
    Case whole(spec);
    const EmulationOptions options{.split_tokens = 64};
    const Result expected = run(whole, options);
    for (const int chunk : {1, 7, 8, 15, 16, 17, 32, 33, 100}) {
      Result joined;
      for (int begin = 0; begin < 100; begin += chunk) {
        const int rows = std::min(chunk, 100 - begin);
        Case part(DecodeAndPrefill::spec(rows, begin + rows, window));
        const int64_t row = int64_t{2} * 128;
        std::copy_n(whole.q_bf16.begin() + begin * row, rows * row, part.q_bf16.begin());
        part.args.pages = whole.args.pages;
        part.args.block_table = whole.args.block_table;
        const Result result = run(part, options);
        joined.out.insert(joined.out.end(), result.out.begin(), result.out.end());
        joined.lse.insert(joined.lse.end(), result.lse.begin(), result.lse.end());
      }
      EXPECT_TRUE(same_bits(joined, expected)) << "chunk " << chunk << " window " << window;
    }
  }
}

// ---- options -------------------------------------------------------------------------------------------------------

TEST(EmulationOptionsTest, APlanIsWhatItsOptionsSay) {
  Case c(decode_spec(256));
  const AttentionPlan plan{.kernel = AttentionKernel::kCpuEmulated,
                           .precision = Precision::kSingle,
                           .kv_tile = 128,
                           .split_tokens = 4096,
                           .promote_qk = true,
                           .reason = ""};
  const Result expected = run(c, {.precision = Precision::kSingle, .kv_tile = 128, .promote_qk = true});
  c.poison_outputs();
  attention_emulated(c.problem, plan, c.args);
  EXPECT_TRUE(same_bits({.out = c.out_values(), .lse = c.lse}, expected));
}

TEST(EmulationOptionsTest, Bf16OutputIsTheF32OutputRounded) {
  CaseSpec spec = decode_spec(64);
  Case f32(spec);
  spec.out_dtype = DType::kBF16;
  Case bf16(spec);
  std::vector<float> rounded = run(f32, {}).out;
  for (float& value : rounded) value = to_float(to_bf16(value));
  EXPECT_TRUE(same_bits(run(bf16, {}).out, rounded));
}

TEST(EmulationOptionsTest, PromotionAndFreshAccumulatorsReduceTheError) {
  CaseSpec spec = decode_spec(256);
  spec.kv_lens = {20011};
  spec.query_lens = {1};
  spec.num_q_heads = 2;
  spec.kv.num_kv_heads = 1;
  Case c(spec);
  const OracleOutput expected = c.expected();
  const auto error = [&](const EmulationOptions& options) {
    return testing::deviation(std::span<const float>(run(c, options).out), std::span<const double>(expected.out), 256)
        .relative_l2;
  };
  const double two_level = error({});
  EXPECT_GT(error({.fresh_accumulator = false}), 3 * two_level);
  EXPECT_LT(error({.promote_qk = true}), two_level);
  EXPECT_LT(error({.accumulator = Accumulator::kFp32}), two_level);
}

// The price of an integer maximum in `single`: equal weights round alike while the normaliser adds the unrounded ones.
// Worst case: P = 1.0624 * 128 becomes 128, and V = 1 gives 0.9412. hi + lo/16 keeps 136 of 135.99.
TEST(EmulationOptionsTest, EqualWeightsRoundAlike) {
  CaseSpec spec = decode_spec(64);
  const auto first_dim = [](int, int64_t, int, int d) { return d == 0 ? 1.0F : 0.0F; };
  spec.query = spec.key = first_dim;
  spec.value = [](int, int64_t, int, int) { return 1.0F; };
  spec.softmax_scale = std::log(1.0624F);
  Case c(spec);
  EXPECT_NEAR(run(c, {.precision = Precision::kSingle}).out[0], 128.0F / (1.0624F * 128.0F), 1e-5F);
  EXPECT_NEAR(run(c, {.precision = Precision::kSplit}).out[0], 136.0F / (1.0624F * 128.0F), 1e-5F);
}

TEST(EmulationOptionsTest, WhatNoKernelHasIsRefused) {
  Case c(decode_spec(64));
  for (const EmulationOptions& bad : {EmulationOptions{.precision = Precision::kFull},
                                      {.precision = Precision::kAuto},
                                      {.kv_tile = 0},
                                      {.kv_tile = 48},
                                      {.kv_tile = 64, .split_tokens = 96},
                                      {.num_splits = 0}}) {
    EXPECT_THROW(attention_emulated(c.problem, bad, c.args), Error);
  }
  c.problem.kv.dtype = KvDtype::kBF16;
  EXPECT_THROW(attention_emulated(c.problem, EmulationOptions{}, c.args), Error);
}

}  // namespace
}  // namespace quaver
