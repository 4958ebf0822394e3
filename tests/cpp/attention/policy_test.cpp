// Every rule of docs/dispatch.md, one by one. Rules about kernels that are not built yet are tested with a list of
// kernels that has them.
#include "attention/policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>

#include "attention/cpu/cpu_attention.h"
#include "attention/registry.h"
#include "attention/tiles.h"

namespace quaver {
namespace {

using Kernel = AttentionKernel;

constexpr std::array kAllKernels{Kernel::kCpu, Kernel::kCpuEmulated, Kernel::kDecodeFp8, Kernel::kPrefillFp8,
                                 Kernel::kGeneral};
constexpr std::array kWithoutPrefill{Kernel::kCpu, Kernel::kCpuEmulated, Kernel::kDecodeFp8, Kernel::kGeneral};

// Gemma 4's sliding layers on an H200: 32 query heads, 16 kv heads.
AttentionProblem h200(int head_dim = 256, int query_len = 1) {
  AttentionProblem problem{.arch = 90, .num_q_heads = 32, .max_query_len = query_len, .kernel = {}};
  problem.kv = {.num_kv_heads = 16, .head_dim_k = head_dim, .head_dim_v = head_dim, .page_size = 64};
  return problem;
}

AttentionProblem cpu(int head_dim = 256, int query_len = 1) {
  AttentionProblem problem = h200(head_dim, query_len);
  problem.arch = 0;
  return problem;
}

AttentionPlan planned(const AttentionProblem& problem, std::span<const Kernel> built = kAllKernels) {
  const auto decision = plan_attention(problem, built);
  const auto* plan = std::get_if<AttentionPlan>(&decision);
  EXPECT_NE(plan, nullptr) << std::get<Unsupported>(decision).reason;
  return plan == nullptr ? AttentionPlan{} : *plan;
}

std::string refused(const AttentionProblem& problem, std::span<const Kernel> built = kAllKernels) {
  const auto decision = plan_attention(problem, built);
  const auto* reason = std::get_if<Unsupported>(&decision);
  EXPECT_NE(reason, nullptr) << to_string(problem) << " -> " << to_string(std::get<AttentionPlan>(decision));
  return reason == nullptr ? "" : reason->reason;
}

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

// ---- what no kernel can run

TEST(Policy, MalformedProblemsAreRefusedByName) {
  const auto with = [](auto change) {
    AttentionProblem problem = cpu();
    change(problem);
    return refused(problem);
  };
  // B21: (33, 2), (3, 2), (8, 0)
  EXPECT_SAYS(with([](auto& p) { p.num_q_heads = 33, p.kv.num_kv_heads = 2; }), "num_q_heads 33");
  EXPECT_SAYS(with([](auto& p) { p.num_q_heads = 3, p.kv.num_kv_heads = 2; }), "num_q_heads 3");
  EXPECT_SAYS(with([](auto& p) { p.num_q_heads = 8, p.kv.num_kv_heads = 0; }), "num_kv_heads 0");
  EXPECT_SAYS(with([](auto& p) { p.num_q_heads = 0; }), "num_q_heads 0");
  EXPECT_SAYS(with([](auto& p) { p.kv.head_dim_v = 0; }), "head dims 256 and 0");
  EXPECT_SAYS(with([](auto& p) { p.kv.head_dim_k = 72; }), "multiples of 16");  // B22
  EXPECT_SAYS(with([](auto& p) { p.kv.page_size = 48; }), "page size 48");
  EXPECT_SAYS(with([](auto& p) { p.max_query_len = 0; }), "max_query_len 0");
  EXPECT_SAYS(with([](auto& p) { p.window = -1; }), "window -1");
  EXPECT_SAYS(with([](auto& p) { p.softcap = -1.0F; }), "softcap -1");
  EXPECT_SAYS(with([](auto& p) { p.softcap = std::numeric_limits<float>::quiet_NaN(); }), "softcap nan");
  EXPECT_SAYS(with([](auto& p) { p.bidirectional_spans = true, p.causal = false; }), "bidirectional_spans");
}

TEST(Policy, OtherCudaArchitecturesAreRefused) {
  for (const int arch : {80, 86, 89, 100, 120, -1}) {
    AttentionProblem problem = h200();
    problem.arch = arch;
    EXPECT_SAYS(refused(problem), "expected sm_90");
  }
}

// ---- the CPU

TEST(Policy, TheCpuComputesInFp32) {
  for (const KvDtype dtype : {KvDtype::kE4M3, KvDtype::kBF16}) {
    for (const int query_len : {1, 2048}) {
      AttentionProblem problem = cpu(256, query_len);
      problem.kv.dtype = dtype;
      const AttentionPlan plan = planned(problem);
      EXPECT_EQ(plan.kernel, Kernel::kCpu);
      EXPECT_EQ(plan.precision, Precision::kFull);
      EXPECT_EQ(plan.kv_tile, kCpuTile);
      EXPECT_EQ(plan.split_tokens, kCpuSplitTokens);
    }
  }
}

TEST(Policy, FP8PrecisionOnTheCpuIsTheEmulation) {
  for (const Precision precision : {Precision::kSingle, Precision::kSplit}) {
    AttentionProblem problem = cpu();
    problem.precision = precision;
    const AttentionPlan plan = planned(problem);
    EXPECT_EQ(plan.kernel, Kernel::kCpuEmulated);
    EXPECT_EQ(plan.precision, precision);
    EXPECT_SAYS(plan.reason, "not cpu: precision");
    problem.kv.dtype = KvDtype::kBF16;
    EXPECT_SAYS(refused(problem), "kv dtype bf16");
  }
}

TEST(Policy, TheEmulationHasTheTilesAndDefaultsOfTheKernelItStandsFor) {
  AttentionProblem problem = cpu(256, 16);  // 2 heads a group: 32 rows
  problem.kernel = Kernel::kCpuEmulated;
  EXPECT_EQ(planned(problem).kv_tile, 64);
  EXPECT_EQ(planned(problem).precision, Precision::kSplit);
  problem.max_query_len = 17;
  EXPECT_EQ(planned(problem).kv_tile, 128);
  EXPECT_EQ(planned(problem).precision, Precision::kSingle);
  problem.batch_invariant = true;  // B25: the longest sequence of a batch must not choose for the others
  EXPECT_EQ(planned(problem).kv_tile, 64);
  EXPECT_EQ(planned(problem).precision, Precision::kSplit);
}

// ---- decode on Hopper

TEST(Policy, DecodeTakesAllKernelHeadDimsAndSplits) {
  for (const int head_dim : tiles::kKernelHeadDims) {
    const AttentionPlan plan = planned(h200(head_dim));
    EXPECT_EQ(plan.kernel, Kernel::kDecodeFp8);
    EXPECT_EQ(plan.precision, Precision::kSplit);  // S4 at 512, and better than S3 at 256
    EXPECT_EQ(plan.kv_tile, tiles::kv_tile(tiles::KernelFamily::kDecode, head_dim));
    EXPECT_EQ(plan.max_rows, 32);
    EXPECT_EQ(plan.split_tokens, 0);
  }
}

TEST(Policy, DecodeTakes32RowsAKvHead) {
  EXPECT_EQ(planned(h200(256, 16)).kernel, Kernel::kDecodeFp8);
  const AttentionPlan plan = planned(h200(256, 17), kWithoutPrefill);
  EXPECT_EQ(plan.kernel, Kernel::kGeneral);
  EXPECT_SAYS(plan.reason, "34: expected at most 32");
  EXPECT_SAYS(plan.reason, "not prefill_fp8: not part of this version");
  AttentionProblem wide = h200(64, 1);
  wide.num_q_heads = 33, wide.kv.num_kv_heads = 1;
  EXPECT_EQ(planned(wide, kWithoutPrefill).kernel, Kernel::kGeneral);
  wide.num_q_heads = 32;
  EXPECT_EQ(planned(wide, kWithoutPrefill).kernel, Kernel::kDecodeFp8);
}

TEST(Policy, DecodeTakesSeveralRowsCausalOrNot) {
  AttentionProblem problem = h200();
  for (const int query_len : {1, 2, 4}) {
    problem.max_query_len = query_len;
    for (const bool causal : {true, false}) {
      problem.causal = causal;
      problem.window = 0;
      EXPECT_EQ(planned(problem).kernel, Kernel::kDecodeFp8);
      problem.window = 100;
      EXPECT_EQ(planned(problem).kernel, Kernel::kDecodeFp8);
    }
  }
}

TEST(Policy, SpansWidenSeveralRowsOnly) {
  AttentionProblem problem = h200();
  problem.bidirectional_spans = true;
  EXPECT_EQ(planned(problem).kernel, Kernel::kDecodeFp8);
  problem.max_query_len = 4;
  EXPECT_EQ(planned(problem).kernel, Kernel::kPrefillFp8);
  EXPECT_SAYS(planned(problem).reason, "not decode_fp8: bidirectional spans");
  problem.kv.dtype = KvDtype::kBF16;
  EXPECT_EQ(planned(problem).kernel, Kernel::kGeneral);
  problem.arch = 0;
  problem.kv.dtype = KvDtype::kE4M3;
  problem.kernel = Kernel::kCpuEmulated;
  EXPECT_EQ(planned(problem).kv_tile, tiles::kv_tile(tiles::KernelFamily::kPrefill, problem.kv.head_dim_k));
}

// B5: in the source system softcap and batch invariance exclude FP8 (S2); here nothing does.
TEST(Policy, SoftcapSinksWindowAndBatchInvarianceKeepFp8) {
  for (const int query_len : {1, 512}) {
    AttentionProblem problem = h200(256, query_len);
    problem.softcap = 50.0F;
    problem.sinks = true;
    problem.window = 1024;
    problem.batch_invariant = true;
    const AttentionPlan plan = planned(problem);
    EXPECT_EQ(plan.kernel, query_len == 1 ? Kernel::kDecodeFp8 : Kernel::kPrefillFp8);
    EXPECT_EQ(plan.split_tokens, query_len == 1 ? 4096 : 0);  // prefill never cuts the keys of a row
  }
}

// The plan says what runs: the decode kernel promotes in both precisions, and so does its emulation.
TEST(Policy, DecodePromotesQkFromHeadDim256) {
  for (const Precision precision : {Precision::kSplit, Precision::kSingle}) {
    for (const int head_dim : {64, 96, 128, 192, 256, 512}) {
      AttentionProblem problem = h200(head_dim);
      problem.precision = precision;
      EXPECT_EQ(planned(problem).precision, precision);
      EXPECT_EQ(planned(problem).promote_qk, head_dim >= 256) << "head dim " << head_dim;
      EXPECT_EQ(explain(problem).find("QK promoted every K = 128") != std::string::npos, head_dim >= 256);
      problem.arch = 0;
      problem.kernel = Kernel::kCpuEmulated;
      EXPECT_EQ(planned(problem).promote_qk, head_dim >= 256) << "emulated, head dim " << head_dim;
    }
  }
}

// `single` at 256 has no registers for a second S.
TEST(Policy, PrefillPromotesQkFrom256ButInSingleThere) {
  for (const Precision precision : {Precision::kSplit, Precision::kSingle}) {
    for (const int head_dim : {64, 96, 128, 192, 256, 512}) {
      const bool promotes = head_dim == 512 || (head_dim == 256 && precision == Precision::kSplit);
      AttentionProblem problem = h200(head_dim, 8192);
      problem.precision = precision;
      EXPECT_EQ(planned(problem).kernel, Kernel::kPrefillFp8);
      EXPECT_EQ(planned(problem).promote_qk, promotes) << "head dim " << head_dim;
      problem.arch = 0;
      problem.kernel = Kernel::kCpuEmulated;
      EXPECT_EQ(planned(problem).promote_qk, promotes) << "emulated, head dim " << head_dim;
    }
  }
}

// ---- prefill on Hopper

TEST(Policy, PrefillIsNativeFp8UpTo256) {  // S1, S3
  for (const int head_dim : {64, 96, 128, 192, 256}) {
    const AttentionPlan plan = planned(h200(head_dim, 8192));
    EXPECT_EQ(plan.kernel, Kernel::kPrefillFp8);
    EXPECT_EQ(plan.precision, Precision::kSingle);
    EXPECT_EQ(plan.kv_tile, 128);
    EXPECT_EQ(plan.max_rows, 0);
  }
}

TEST(Policy, PrefillIsSplitAt512) {  // the source system keeps a BF16 Q there
  const AttentionPlan plan = planned(h200(512, 8192));
  EXPECT_EQ(plan.kernel, Kernel::kPrefillFp8);
  EXPECT_EQ(plan.precision, Precision::kSplit);
  EXPECT_EQ(plan.kv_tile, 64);
  EXPECT_SAYS(plan.reason, "Q and P as hi + lo");
}

TEST(Policy, PrefillTakesEitherPrecisionOnRequest) {
  for (const Precision precision : {Precision::kSplit, Precision::kSingle}) {
    for (const int head_dim : {64, 96, 128, 192, 256, 512}) {
      AttentionProblem problem = h200(head_dim, 8192);
      problem.precision = precision;
      EXPECT_EQ(planned(problem).kernel, Kernel::kPrefillFp8);
      EXPECT_EQ(planned(problem).precision, precision);
      EXPECT_SAYS(explain(problem),
                  precision == Precision::kSplit ? "split: Q and P as hi + lo/16" : "single: Q and P in E4M3");
    }
  }
}

// ---- the general kernel

TEST(Policy, TheGeneralKernelTakesTheRest) {
  AttentionProblem bf16 = h200();
  bf16.kv.dtype = KvDtype::kBF16;
  EXPECT_EQ(planned(bf16).kernel, Kernel::kGeneral);
  EXPECT_EQ(planned(bf16).precision, Precision::kFull);
  EXPECT_SAYS(planned(bf16).reason, "kv dtype bf16");
  bf16.kv.head_dim_k = bf16.kv.head_dim_v = 72;  // B22: any head dim in a BF16 cache
  EXPECT_EQ(planned(bf16).kernel, Kernel::kGeneral);

  AttentionProblem uneven = h200(192);
  uneven.kv.head_dim_v = 128;
  EXPECT_EQ(planned(uneven).kernel, Kernel::kGeneral);
  EXPECT_SAYS(planned(uneven).reason, "192 (K) and 128 (V)");
  EXPECT_EQ(planned(h200(80)).kernel, Kernel::kGeneral);
  EXPECT_SAYS(planned(h200(80)).reason, "head dim 80");

  AttentionProblem full = h200();
  full.precision = Precision::kFull;
  EXPECT_EQ(planned(full).kernel, Kernel::kGeneral);
}

TEST(Policy, NoKernelNamesEveryObjection) {
  AttentionProblem problem = h200(80);
  problem.precision = Precision::kSplit;  // the general kernel has FP32 only
  const std::string reason = refused(problem);
  EXPECT_SAYS(reason, "not decode_fp8: head dim 80");
  EXPECT_SAYS(reason, "not prefill_fp8: head dim 80");
  EXPECT_SAYS(reason, "not general: precision split");
}

// ---- overrides

TEST(Policy, OverridesAreKept) {
  AttentionProblem problem = h200();
  problem.kernel = Kernel::kGeneral;
  EXPECT_EQ(planned(problem).kernel, Kernel::kGeneral);
  problem.kernel = Kernel::kPrefillFp8;  // one query token through the prefill kernel
  EXPECT_EQ(planned(problem).kernel, Kernel::kPrefillFp8);
  EXPECT_SAYS(planned(problem).reason, "asked for");
  problem.precision = Precision::kSingle;
  EXPECT_EQ(planned(problem).precision, Precision::kSingle);
}

TEST(Policy, OverridesAreRefusedNotReplaced) {
  const auto asked = [](AttentionProblem problem, Kernel kernel, std::span<const Kernel> built) {
    problem.kernel = kernel;
    return refused(problem, built);
  };
  EXPECT_SAYS(asked(h200(256, 17), Kernel::kDecodeFp8, kAllKernels), "kernel decode_fp8 was asked for; query rows");
  EXPECT_SAYS(asked(h200(80), Kernel::kDecodeFp8, kAllKernels), "head dim 80");
  EXPECT_SAYS(asked(h200(), Kernel::kPrefillFp8, kWithoutPrefill), "not part of this version");
  EXPECT_SAYS(asked(h200(), Kernel::kCpu, kAllKernels), "expected the CPU");
  EXPECT_SAYS(asked(cpu(), Kernel::kDecodeFp8, kAllKernels), "expected arch 90");
  AttentionProblem split = h200();
  split.precision = Precision::kSplit;
  EXPECT_SAYS(asked(split, Kernel::kGeneral, kAllKernels), "precision split: expected full or auto");
  AttentionProblem full = h200();
  full.precision = Precision::kFull;
  EXPECT_SAYS(asked(full, Kernel::kDecodeFp8, kAllKernels), "precision full");
  AttentionProblem single = cpu();
  single.precision = Precision::kSingle;
  EXPECT_SAYS(asked(single, Kernel::kCpu, kAllKernels), "precision single");
}

// ---- the public entry

// Whatever is asked, the plan names a kernel of the registry and of the right machine, and says why.
TEST(Policy, OnlyBuiltKernelsArePlanned) {
  for (const int arch : {0, 90}) {
    for (const int head_dim : {16, 64, 80, 96, 128, 192, 256, 320, 512}) {
      for (const int query_len : {1, 2, 16, 17, 4096}) {
        for (const KvDtype dtype : {KvDtype::kE4M3, KvDtype::kBF16}) {
          for (const Precision precision :
               {Precision::kAuto, Precision::kSingle, Precision::kSplit, Precision::kFull}) {
            AttentionProblem problem = h200(head_dim, query_len);
            problem.arch = arch;
            problem.kv.dtype = dtype;
            problem.precision = precision;
            const auto decision = plan_attention(problem);
            if (const auto* no = std::get_if<Unsupported>(&decision)) {
              EXPECT_FALSE(no->reason.empty());
              // In FP32 every shape has an answer, on the CPU and on the GPU.
              EXPECT_TRUE(precision == Precision::kSingle || precision == Precision::kSplit) << no->reason;
              continue;
            }
            const auto& plan = std::get<AttentionPlan>(decision);
            EXPECT_NE(std::ranges::find(kBuiltKernels, plan.kernel), kBuiltKernels.end());
            EXPECT_TRUE(precision == Precision::kAuto || plan.precision == precision);
            EXPECT_NE(plan.precision, Precision::kAuto);
            EXPECT_EQ(arch == 0, plan.kernel == Kernel::kCpu || plan.kernel == Kernel::kCpuEmulated);
            EXPECT_FALSE(plan.reason.empty());
          }
        }
      }
    }
  }
}

TEST(Explain, SaysWhatWhyAndWhatWouldChangeIt) {
  const std::string text = explain(cpu(256, 512));
  EXPECT_SAYS(text, "problem:   cpu, 32 q heads, 16 kv heads, head dim 256, fp8 cache, pages of 64");
  EXPECT_SAYS(text, "decision:  cpu, full, tiles of 64 keys, split every 512 keys");
  EXPECT_SAYS(text, "numerics:  full");
  EXPECT_SAYS(text, "why:");
  EXPECT_SAYS(text, "precision single: cpu_emulated, single");
  EXPECT_EQ(text.find("in vLLM"), std::string::npos);  // a CPU has no FlashAttention version
}

TEST(Explain, RefusalsHaveAReason) {
  AttentionProblem problem = h200();
  problem.arch = 80;
  const std::string text = explain(problem);
  EXPECT_SAYS(text, "not supported");
  EXPECT_SAYS(text, "sm_80");
}

TEST(Explain, ProblemsPrintEveryAxis) {
  AttentionProblem problem = h200(192, 3);
  problem.kv.head_dim_v = 128;
  problem.window = 1024;
  problem.softcap = 50.0F;
  problem.sinks = true;
  problem.batch_invariant = true;
  problem.bidirectional_spans = true;
  problem.precision = Precision::kSplit;
  problem.kernel = Kernel::kGeneral;
  EXPECT_EQ(to_string(problem),
            "sm_90, 32 q heads, 16 kv heads, head dim 192/128, fp8 cache, pages of 64, up to 3 query tokens, causal, "
            "window 1024, softcap 50, sinks, bidirectional spans, batch invariant, precision split, kernel general");
}

}  // namespace
}  // namespace quaver
