// DirectAttention on the GPU (and on the emulated one): the pages and rows that it packs have the CPU's bytes, and
// every form, dtype, memory order and feature gives the oracle's answer.
#include "attention/direct/device_pack.h"
#include "direct_device.h"
#include "kv_cache/page_format.h"
#include "testing/metric.h"

namespace quaver::testing {
namespace {

class DirectForms : public ::testing::TestWithParam<DirectSpec> {};

TEST_P(DirectForms, PackTheBytesOfTheCpu) {
  DirectCase host(GetParam());
  DeviceDirect device(host);
  const auto count = std::ssize(host.query_start) - 1;
  const direct::Sequences equal{.equal_length = GetParam().batched ? GetParam().key_lens.front() : 0, .count = count};
  const auto keys = [&](const ConstTensorView& starts) {
    if (GetParam().batched) return equal;
    return direct::Sequences{.starts = static_cast<const int32_t*>(starts.data), .count = count};
  };
  const KvLayout& layout = host.problem.kv;
  const int64_t num_pages = direct::num_scratch_pages(host.key_start.back(), count, layout.page_size);
  std::vector<uint8_t> pages(static_cast<size_t>(num_pages * page_format::page_bytes(layout)), 0xA5);
  const DeviceBuffer<uint8_t> device_pages = to_device(pages);
  direct::KvPack pack{.layout = layout,
                      .k = direct::source_of(host.args.k),
                      .v = direct::source_of(host.args.v),
                      .keys = keys(host.args.key_start),
                      .k_scale = static_cast<const float*>(host.args.k_scale.data),
                      .k_scale_stride = 1,
                      .v_scale = static_cast<const float*>(host.args.v_scale.data),
                      .v_scale_stride = 1,
                      .pages = pages.data(),
                      .num_keys = host.key_start.back()};
  direct::pack_kv(pack);
  pack.k = direct::source_of(device.args.k);
  pack.v = direct::source_of(device.args.v);
  pack.keys = keys(device.args.key_start);
  pack.k_scale = static_cast<const float*>(device.args.k_scale.data);
  pack.v_scale = static_cast<const float*>(device.args.v_scale.data);
  pack.pages = device_pages.data();
  direct::pack_kv(pack, nullptr);
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  EXPECT_EQ(to_host(device_pages), pages);
}

TEST_P(DirectForms, EqualTheOracle) {
  DirectCase host(GetParam());
  DeviceDirect device(host);
  DirectAttention attention({.kind = Device::Kind::kCuda, .index = 0});
  device.run(attention);
  AttentionProblem problem = host.problem;
  problem.arch = 90;
  const auto plan = std::get<AttentionPlan>(plan_attention(problem));
  const Tolerance limit = tolerance(plan.precision, GetParam().out);
  const OracleOutput expected = host.expected();
  EXPECT_TRUE(close_to<float>(host.out_values(), expected.out, GetParam().head_dim_v, limit)) << to_string(plan);
  EXPECT_TRUE(lse_close_to<float>(host.lse, expected.lse, limit)) << to_string(plan);
}

INSTANTIATE_TEST_SUITE_P(Specs, DirectForms, ::testing::ValuesIn(direct_specs()));

// The workspace grows for a larger call, and holds its bytes in the next one: the same bits.
TEST(DirectDevice, CallsLeaveNothingBehind) {
  for (const KvDtype stored : {KvDtype::kE4M3, KvDtype::kBF16}) {
    DirectAttention attention({.kind = Device::Kind::kCuda, .index = 0});
    DirectCase host({.query_lens = {5, 1}, .key_lens = {20, 3}, .num_q_heads = 2, .q = DType::kE4M3, .stored = stored});
    DirectCase larger({.query_lens = {9, 40}, .key_lens = {90, 70}, .num_q_heads = 2, .stored = stored, .seed = 2});
    DeviceDirect device(host);
    device.run(attention);
    const std::vector<uint8_t> first = host.out_bytes;
    DeviceDirect(larger).run(attention);
    device.run(attention);
    EXPECT_EQ(host.out_bytes, first);
  }
}

// More problems than plans are kept, one after another and all again.
TEST(DirectDevice, PlansComeAndGo) {
  DirectAttention attention({.kind = Device::Kind::kCuda, .index = 0});
  std::vector<std::vector<uint8_t>> first;
  for (int round = 0; round < 2; ++round) {
    for (int window = 1; window <= 10; ++window) {
      DirectCase host({.query_lens = {2, 1}, .key_lens = {40, 17}, .window = window});
      DeviceDirect(host).run(attention);
      if (round == 0) first.push_back(host.out_bytes);
      EXPECT_EQ(host.out_bytes, first[static_cast<size_t>(window - 1)]) << "window " << window;
    }
  }
}

}  // namespace
}  // namespace quaver::testing
