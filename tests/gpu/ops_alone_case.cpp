// A token's bits do not depend on the other tokens, which the kernel's way of sharing out the work depends on.
#include <algorithm>
#include <functional>

#include "gemm/packed_fp8/layout.h"
#include "ops/cuda/device_ops.h"
#include "ops_rows_case.h"

namespace quaver::testing {
namespace {

/// Codes, scales and BF16 values of one token.
InputBytes token_of(const InputBuffer& buffer, int64_t token) {
  const InputShape& shape = buffer.shape();
  const GemmInput view = buffer.view();
  const InputBytes bytes = buffer.bytes();
  InputBytes result;
  if (shape.kind == InputKind::kBf16) {
    const auto row = bytes.rows.begin() + token * shape.columns;
    result.rows.assign(row, row + shape.columns);
    return result;
  }
  const int64_t chunks = packed_fp8::num_chunks(shape.columns);
  for (int64_t column = 0; column < chunks * packed_fp8::kChunk; ++column) {
    result.packed.push_back(bytes.packed[static_cast<size_t>(packed_fp8::packed_offset(token, column, shape.columns))]);
  }
  const bool blocks = shape.kind == InputKind::kPerBlock;
  for (int64_t i = 0; i < (blocks ? chunks : 1); ++i) {
    result.scales.push_back(
        bytes.scales[static_cast<size_t>(blocks ? i * view.scale_stride + token : token * view.scale_stride)]);
  }
  return result;
}

/// `op(first, count, out)` on all tokens, then on some of them alone.
void expect_alone(const InputShape& shape, const char* name,
                  const std::function<void(int64_t, int64_t, const GemmInput&)>& op) {
  const InputBuffer all(shape);
  op(0, shape.tokens, all.view());
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  for (const int64_t token : {int64_t{0}, shape.tokens / 2 + 1, shape.tokens - 1}) {
    InputShape one = shape;
    one.tokens = 1;
    const InputBuffer alone(one);
    op(token, 1, alone.view());
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    EXPECT_TRUE(same_bits(token_of(alone, 0), token_of(all, token))) << name << ", token " << token;
  }
}

}  // namespace

void check_rows_alone(const InputShape& shape) {
  const int64_t columns = shape.columns;
  const std::vector<Bf16> hidden = test_rows(shape.tokens, columns, 20);
  const auto rows = to_device(test_rows(shape.tokens, 2 * columns, 21, 3.0F));
  const auto weights = to_device(test_weights(columns, 22));
  expect_alone(shape, "norm", [&](int64_t first, int64_t count, const GemmInput& out) {
    device_ops::norm_quantize({.hidden = rows.data() + first * columns,
                               .norm = weights.data(),
                               .num_tokens = count,
                               .hidden_size = columns,
                               .out = out},
                              nullptr);
  });
  std::vector<Bf16> stored;
  expect_alone(shape, "add and norm", [&](int64_t first, int64_t count, const GemmInput& out) {
    const auto now = to_device(hidden);
    device_ops::add_norm_quantize({.projected = rows.data() + first * columns,
                                   .post_norm = weights.data(),
                                   .hidden = now.data() + first * columns,
                                   .layer_scalar = 0.7F,
                                   .next_norm = weights.data(),
                                   .num_tokens = count,
                                   .hidden_size = columns,
                                   .out = out},
                                  nullptr);
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    const std::vector<Bf16> result = to_host(now);
    if (count == shape.tokens) stored = result;
    const auto at = first * columns;
    EXPECT_TRUE(std::equal(result.begin() + at, result.begin() + at + columns, stored.begin() + at)) << "hidden";
  });
  expect_alone(shape, "gate", [&](int64_t first, int64_t count, const GemmInput& out) {
    device_ops::geglu_quantize(
        {.gate_up = rows.data() + 2 * first * columns, .num_tokens = count, .intermediate_size = columns, .out = out},
        nullptr);
  });
  if (shape.kind == InputKind::kBf16) return;
  expect_alone(shape, "quantisation", [&](int64_t first, int64_t count, const GemmInput& out) {
    device_ops::quantize({.rows = rows.data() + first * columns, .num_tokens = count, .width = columns, .out = out},
                         nullptr);
  });
}

}  // namespace quaver::testing
