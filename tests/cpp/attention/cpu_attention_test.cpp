// The fast CPU path against the float64 oracle, and against itself: the same bits whatever stands beside a row.
#include <gtest/gtest.h>
#include <omp.h>

#include <bit>

#include "attention/cpu_run.h"
#include "testing/metric.h"

namespace quaver::testing {
namespace {

constexpr KvDtype kFp8 = KvDtype::kE4M3;
constexpr KvDtype kBf16 = KvDtype::kBF16;

KvLayout layout(KvDtype dtype, int kv_heads, int head_dim, int page_size = 64) {
  return {
      .dtype = dtype, .num_kv_heads = kv_heads, .head_dim_k = head_dim, .head_dim_v = head_dim, .page_size = page_size};
}

void expect_matches_oracle(const CaseSpec& spec) {
  Case c(spec);
  run(c);
  const OracleOutput expected = c.expected();
  const Tolerance limit = tolerance(Precision::kFull, spec.out_dtype);
  const std::vector<float> out = c.out_values();
  EXPECT_TRUE(close_to(std::span<const float>(out), std::span<const double>(expected.out), spec.kv.head_dim_v, limit))
      << to_string(c.problem);
  EXPECT_TRUE(lse_close_to(c.lse_values(), std::span<const double>(expected.lse), limit)) << to_string(c.problem);
}

// ---- against float64

TEST(CpuAttention, RaggedDecode) {
  const std::vector<int32_t> lengths = ragged_lengths();
  for (const KvDtype dtype : {kFp8, kBf16}) {
    for (const DType out : {DType::kF32, DType::kBF16}) {
      expect_matches_oracle({.query_lens = std::vector<int32_t>(lengths.size(), 1),
                             .kv_lens = lengths,
                             .num_q_heads = 4,
                             .kv = layout(dtype, 2, 64),
                             .q_dtype = out,
                             .out_dtype = out});
    }
  }
}

TEST(CpuAttention, RaggedPrefillAndMixedSteps) {
  for (const KvDtype dtype : {kFp8, kBf16}) {
    for (const int page_size : {16, 32, 64, 128}) {
      expect_matches_oracle({.query_lens = {129, 1, 0, 17, 1, 64, 3, 31},
                             .kv_lens = {129, 307, 5, 64, 0, 65, 2, 131},
                             .num_q_heads = 3,
                             .kv = layout(dtype, 1, 64, page_size),
                             .out_dtype = DType::kF32});
    }
  }
}

// Long enough for several fixed splits of 512 keys, cut over threads or not.
TEST(CpuAttention, LongContexts) {
  for (const KvDtype dtype : {kFp8, kBf16}) {
    expect_matches_oracle({.query_lens = {1}, .kv_lens = {4099}, .num_q_heads = 2, .kv = layout(dtype, 1, 64)});
    expect_matches_oracle({.query_lens = {5, 1, 1, 2, 1, 1, 1, 1, 1},
                           .kv_lens = {1537, 511, 512, 513, 1023, 1024, 1025, 2049, 600},
                           .num_q_heads = 2,
                           .kv = layout(dtype, 1, 64),
                           .out_dtype = DType::kF32});
  }
}

TEST(CpuAttention, WindowsCausalAndNot) {
  for (const bool causal : {true, false}) {
    for (const int window : {1, 2, 16, 17, 64, 100, 600}) {
      expect_matches_oracle({.query_lens = {1, 40, 7, 130},
                             .kv_lens = {700, 701, 3, 130},
                             .num_q_heads = 2,
                             .kv = layout(kFp8, 1, 64, 16),
                             .causal = causal,
                             .window = window,
                             .out_dtype = DType::kF32});
    }
  }
}

TEST(CpuAttention, SoftcapSinksScalesAndDescales) {
  for (const KvDtype dtype : {kFp8, kBf16}) {
    for (const float softcap : {0.0F, 2.0F, 50.0F}) {
      expect_matches_oracle({.query_lens = {1, 33, 1, 4},
                             .kv_lens = {0, 97, 300, 1},
                             .num_q_heads = 6,
                             .kv = layout(dtype, 3, 64, 32),
                             .window = 80,
                             .softcap = softcap,
                             .sinks = true,
                             .scales = true,
                             .descales = true,
                             .out_dtype = DType::kF32});
    }
  }
}

TEST(CpuAttention, ImageSpansSeeEachOther) {
  for (const int window : {0, 8, 64}) {
    for (const int span_len : {1, 5, 90}) {
      expect_matches_oracle({.query_lens = {100, 1, 37, 256},
                             .kv_lens = {100, 50, 90, 300},
                             .num_q_heads = 2,
                             .kv = layout(kFp8, 1, 64),
                             .window = window,
                             .span_len = span_len,
                             .out_dtype = DType::kF32});
    }
  }
}

TEST(CpuAttention, EveryGqaRatio) {
  for (int ratio = 1; ratio <= 16; ++ratio) {
    expect_matches_oracle({.query_lens = {1, 10, 12},
                           .kv_lens = {67, 70, 12},
                           .num_q_heads = 2 * ratio,
                           .kv = layout(kFp8, 2, 16),
                           .out_dtype = DType::kF32});
  }
}

// Large logits: the running maximum moves by many powers of two from tile to tile.
TEST(CpuAttention, LargeLogits) {
  expect_matches_oracle({.query_lens = {3, 70},
                         .kv_lens = {900, 70},
                         .num_q_heads = 2,
                         .kv = layout(kFp8, 1, 64),
                         .softmax_scale = 1.0F,
                         .out_dtype = DType::kF32});
}

// ---- the same bits

struct Bits {
  std::vector<uint32_t> out, lse;
  friend bool operator==(const Bits&, const Bits&) = default;
};

Bits bits_of(const Case& c) {
  Bits bits;
  for (const float x : c.out_values()) bits.out.push_back(std::bit_cast<uint32_t>(x));
  for (const float x : c.lse) bits.lse.push_back(std::bit_cast<uint32_t>(x));
  return bits;
}

// Calls of a few rows are too short to share among threads; on a busy machine the sharing dominates a test.
class OneThread {
 public:
  OneThread() { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(threads_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int threads_ = omp_get_max_threads();
};

CaseSpec batch_spec(KvDtype dtype, int window) {
  return {.query_lens = {1, 100, 33, 1, 1, 8, 1},
          .kv_lens = {1300, 100, 700, 600, 17, 1030, 1},
          .num_q_heads = 6,
          .kv = layout(dtype, 2, 64, 32),
          .window = window,
          .softcap = 30.0F,
          .sinks = true,
          .descales = true,
          .out_dtype = DType::kF32};
}

// B25: a row alone, in a batch, and from run to run. Alone it is cut over the threads at its splits; in the batch not.
TEST(CpuAttention, ARowDoesNotDependOnItsBatchMates) {
  for (const KvDtype dtype : {kFp8, kBf16}) {
    for (const int window : {0, 16, 700}) {
      Case c(batch_spec(dtype, window));
      run(c);
      const Bits whole = bits_of(c);
      run(c);
      EXPECT_EQ(bits_of(c), whole);
      const OneThread one_thread;
      c.poison_outputs();
      for (int b = 0; b < 7; ++b)
        run_rows(c, b, 0, c.query_start[static_cast<size_t>(b) + 1] - c.query_start[static_cast<size_t>(b)]);
      EXPECT_EQ(bits_of(c), whole);
    }
  }
}

// B17, B26: one-shot prefill, every chunking of it and decoding token by token give the same bits.
TEST(CpuAttention, ChunkedPrefillAndDecodeAgreeWithOneShot) {
  for (const int window : {0, 16, 100}) {
    Case c({.query_lens = {600},
            .kv_lens = {600},
            .num_q_heads = 4,
            .kv = layout(kFp8, 1, 64),
            .window = window,
            .out_dtype = DType::kF32});
    run(c);
    const Bits whole = bits_of(c);
    const OneThread one_thread;
    for (const int64_t chunk : {1, 7, 8, 15, 16, 17, 32, 33, 100, 257}) {
      c.poison_outputs();
      for (int64_t first = 0; first < 600; first += chunk) run_rows(c, 0, first, std::min<int64_t>(first + chunk, 600));
      EXPECT_EQ(bits_of(c), whole) << "window " << window << ", chunk " << chunk;
    }
  }
}

// B16: the Gemma window over an FP8 cache; eight query rows against eight calls of one row, at every length around it.
TEST(CpuAttention, EightRowsAreEightCallsAroundTheWindow) {
  Case c({.query_lens = {8},
          .kv_lens = {2064},
          .num_q_heads = 4,
          .kv = layout(kFp8, 2, 256, 16),
          .window = 1024,
          .softmax_scale = 0.0625F,
          .out_dtype = DType::kF32});
  const OneThread one_thread;
  const auto check_length = [&](int32_t kv_len) {
    c.seq_lens[0] = kv_len;
    run(c);
    const Bits whole = bits_of(c);
    c.poison_outputs();
    for (int64_t row = 0; row < 8; ++row) run_rows(c, 0, row, row + 1);
    EXPECT_EQ(bits_of(c), whole) << kv_len;
  };
  for (int32_t kv_len = 1016; kv_len <= 1100; ++kv_len) check_length(kv_len);
  for (int32_t kv_len = 2040; kv_len <= 2064; ++kv_len) check_length(kv_len);
}

// The page size is storage, not arithmetic.
TEST(CpuAttention, PageSizesGiveTheSameBits) {
  Bits first;
  for (const int page_size : {16, 32, 64, 128}) {
    CaseSpec spec = batch_spec(kFp8, 100);
    spec.kv.page_size = page_size;
    // Values by position, not from the generator: the cases differ in their page order.
    spec.query = [](int b, int64_t t, int h, int d) { return static_cast<float>((b + t + 3 * h + 7 * d) % 13) - 6.0F; };
    spec.key = [](int b, int64_t t, int h, int d) { return static_cast<float>((5 * b + t + h + 11 * d) % 17) / 8.0F; };
    spec.value = [](int b, int64_t t, int h, int d) { return static_cast<float>((b + 3 * t + h + d) % 19) - 9.0F; };
    spec.sinks = spec.descales = false;
    Case c(spec);
    run(c);
    if (page_size == 16) first = bits_of(c);
    EXPECT_EQ(bits_of(c), first) << page_size;
  }
}

}  // namespace
}  // namespace quaver::testing
