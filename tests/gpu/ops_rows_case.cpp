#include "ops_rows_case.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <numbers>

#include "ops/cuda/device_ops.h"
#include "ops/embedding.h"
#include "ops/rope.h"
#include "testing/random.h"

namespace quaver::testing {
namespace {

constexpr float kEps = 1e-6F;

void wait() {
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

std::vector<float> to_floats(const std::vector<Bf16>& values) {
  std::vector<float> floats;
  floats.reserve(values.size());
  for (const Bf16 value : values) floats.push_back(to_float(value));
  return floats;
}

/// rms_norm of one row in float64, into `out`.
void exact_norm(const Bf16* row, const std::vector<float>& weights, double* out) {
  const size_t columns = weights.size();
  double squares = 0.0;
  for (size_t i = 0; i < columns; ++i) squares += std::pow(static_cast<double>(to_float(row[i])), 2);
  const double scale = 1.0 / std::sqrt(squares / static_cast<double>(columns) + kEps);
  for (size_t i = 0; i < columns; ++i) out[i] = static_cast<double>(to_float(row[i])) * scale * weights[i];
}

std::vector<double> exact_norms(const std::vector<Bf16>& rows, const std::vector<float>& weights) {
  std::vector<double> out(rows.size());
  for (size_t at = 0; at < rows.size(); at += weights.size()) {
    exact_norm(rows.data() + at, weights, out.data() + at);
  }
  return out;
}

/// Runs `op` twice into poisoned buffers, expects the same bits and returns them.
InputBytes run_twice(const InputShape& shape, const std::function<void(const GemmInput&)>& op) {
  InputBytes first;
  for (int run = 0; run < 2; ++run) {
    const InputBuffer buffer(shape);
    op(buffer.view());
    wait();
    if (run == 0) {
      first = buffer.bytes();
    } else {
      EXPECT_TRUE(same_bits(buffer.bytes(), first)) << "second run";
    }
  }
  return first;
}

}  // namespace

const char* kind_name(InputKind kind) {
  switch (kind) {
    case InputKind::kBf16: return "bf16";
    case InputKind::kPerToken: return "per token";
    case InputKind::kPerBlock: return "per block";
    case InputKind::kStatic: return "static";
  }
  return "?";
}

std::vector<Bf16> test_rows(int64_t rows, int64_t columns, uint64_t seed, float size) {
  std::vector<Bf16> values(static_cast<size_t>(rows * columns));
  Random random(seed);
  for (Bf16& value : values) value = to_bf16(size * random.normal());
  const auto row = [&](int64_t r) { return values.begin() + r * columns; };
  if (rows > 1) std::fill_n(row(1), columns, Bf16{});
  if (rows > 2) {
    for (int64_t i = 0; i < columns; ++i) row(2)[i] = to_bf16(to_float(row(2)[i]) * 1e-30F);
  }
  if (rows > 3) {
    for (int64_t i = 0; i < columns; i += 61) row(3)[i] = to_bf16(to_float(row(3)[i]) * 3e3F);
  }
  return values;
}

std::vector<float> test_weights(int64_t columns, uint64_t seed) {
  std::vector<float> weights(static_cast<size_t>(columns));
  Random random(seed);
  for (float& weight : weights) weight = 1.0F + 0.3F * random.normal();
  return weights;
}

void check_embed(int64_t tokens, int64_t columns) {
  constexpr int64_t kVocab = 37;
  const std::vector<Bf16> table = test_rows(kVocab, columns, 3);
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  Random random(4);
  for (int32_t& id : ids) id = static_cast<int32_t>(random.below(kVocab));
  std::vector<float> expected(static_cast<size_t>(tokens * columns));
  embed_tokens(ConstTensorView(table.data(), DType::kBF16, {kVocab, columns}), ids, 73.5, expected.data());
  // Padding tokens, below and above the vocabulary, are zeros.
  for (size_t t = 5; t < ids.size(); t += 7) {
    ids[t] = t % 2 == 0 ? -1 : static_cast<int32_t>(kVocab);
    std::fill_n(expected.begin() + static_cast<int64_t>(t) * columns, columns, 0.0F);
  }
  const auto device_table = to_device(table);
  const auto device_ids = to_device(ids);
  const auto hidden = poisoned<Bf16>(tokens * columns + 64);
  device_ops::embed_tokens({.table = device_table.data(),
                            .vocab_size = kVocab,
                            .token_ids = device_ids.data(),
                            .scale = 73.5F,
                            .num_tokens = tokens,
                            .hidden_size = columns,
                            .hidden = hidden.data()},
                           nullptr);
  wait();
  const std::vector<Bf16> got = to_host(hidden);
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(got[i].bits, to_bf16(expected[i]).bits) << i;
  for (size_t i = expected.size(); i < got.size(); ++i) ASSERT_EQ(got[i].bits, 0xFFFF) << "behind the last row";
}

void check_rope_table(int64_t tokens, int head_dim, int rotary_pairs, double theta, double factor) {
  const std::vector<float> frequencies =
      rope_frequencies({.head_dim = head_dim, .rotary_pairs = rotary_pairs, .theta = theta, .factor = factor});
  std::vector<int32_t> positions(static_cast<size_t>(tokens));
  Random random(5);
  for (int32_t& position : positions) position = static_cast<int32_t>(random.below(262144));
  if (tokens > 0) positions[0] = 262143;
  RopeTable expected;
  rope_table(frequencies, positions, expected);
  const auto device_positions = to_device(positions);
  const auto device_frequencies = to_device(frequencies);
  const int64_t width = device_ops::rope_table_width(rotary_pairs);
  const auto table = poisoned<float>(tokens * width + 64);
  device_ops::rope_table({.positions = device_positions.data(),
                          .frequencies = device_frequencies.data(),
                          .rotary_pairs = rotary_pairs,
                          .num_tokens = tokens,
                          .table = table.data()},
                         nullptr);
  wait();
  const std::vector<float> got = to_host(table);
  for (int64_t token = 0; token < tokens; ++token) {
    for (int64_t pair = 0; pair < width / 2; ++pair) {
      const auto at = static_cast<size_t>(token * width + 2 * pair);
      const auto cpu = static_cast<size_t>(token * rotary_pairs + pair);
      // Equal but where FP64's last bit decides a rounding to FP32: one value in 10^8.
      ASSERT_NEAR(got[at], pair < rotary_pairs ? expected.cos[cpu] : 1.0F, 0x1p-24F) << token << " " << pair;
      ASSERT_NEAR(got[at + 1], pair < rotary_pairs ? expected.sin[cpu] : 0.0F, 0x1p-24F) << token << " " << pair;
    }
  }
  for (auto i = static_cast<size_t>(tokens * width); i < got.size(); ++i) ASSERT_TRUE(std::isnan(got[i]));
}

void check_norm_quantize(const InputShape& shape) {
  const std::vector<Bf16> rows = test_rows(shape.tokens, shape.columns, 6);
  const std::vector<float> weights = test_weights(shape.columns, 7);
  const auto device_rows = to_device(rows);
  const auto device_weights = to_device(weights);
  const InputBytes bytes = run_twice(shape, [&](const GemmInput& out) {
    device_ops::norm_quantize({.hidden = device_rows.data(),
                               .norm = device_weights.data(),
                               .eps = kEps,
                               .num_tokens = shape.tokens,
                               .hidden_size = shape.columns,
                               .out = out},
                              nullptr);
  });
  expect_input(InputBuffer(shape), bytes, exact_norms(rows, weights));
}

namespace {

/// Hidden rows of (hidden + norm(projected)) * layer_scalar, each within one BF16 rounding.
void expect_hidden(const std::vector<Bf16>& got, const std::vector<Bf16>& hidden, const std::vector<double>& normed,
                   float layer_scalar) {
  for (size_t i = 0; i < hidden.size(); ++i) {
    const double old = to_float(hidden[i]);
    const double exact = (old + normed[i]) * layer_scalar;
    const double fp32 = 1e-6 * (std::abs(old) + std::abs(normed[i])) * layer_scalar;
    ASSERT_NEAR(to_float(got[i]), exact, 0x1p-8 * std::abs(exact) + fp32) << i;
  }
}

}  // namespace

void check_add_norm_quantize(const InputShape& shape, float layer_scalar) {
  const std::vector<Bf16> projected = test_rows(shape.tokens, shape.columns, 8, 4.0F);
  const std::vector<Bf16> hidden = test_rows(shape.tokens + 1, shape.columns, 9);  // one row that stays
  const std::vector<float> post = test_weights(shape.columns, 10);
  const std::vector<float> next = test_weights(shape.columns, 11);
  const auto device_projected = to_device(projected);
  const auto device_post = to_device(post);
  const auto device_next = to_device(next);
  std::vector<Bf16> stored;
  const InputBytes bytes = run_twice(shape, [&](const GemmInput& out) {
    const auto device_hidden = to_device(hidden);
    device_ops::add_norm_quantize({.projected = device_projected.data(),
                                   .post_norm = device_post.data(),
                                   .hidden = device_hidden.data(),
                                   .layer_scalar = layer_scalar,
                                   .next_norm = device_next.data(),
                                   .eps = kEps,
                                   .num_tokens = shape.tokens,
                                   .hidden_size = shape.columns,
                                   .out = out},
                                  nullptr);
    wait();
    const std::vector<Bf16> now = to_host(device_hidden);
    EXPECT_TRUE(stored.empty() || same_bits(stored, now)) << "hidden of the second run";
    stored = now;
  });
  const auto values = static_cast<ptrdiff_t>(projected.size());
  EXPECT_TRUE(std::equal(stored.begin() + values, stored.end(), hidden.begin() + values)) << "behind the last row";
  stored.resize(projected.size());
  std::vector<Bf16> old(hidden.begin(), hidden.begin() + values);
  expect_hidden(stored, old, exact_norms(projected, post), layer_scalar);
  expect_input(InputBuffer(shape), bytes, exact_norms(stored, next));
}

void check_add_norm(int64_t tokens, int64_t columns) {
  const std::vector<Bf16> projected = test_rows(tokens, columns, 12, 0.1F);
  const std::vector<Bf16> hidden = test_rows(tokens, columns, 13);
  const std::vector<float> post = test_weights(columns, 14);
  const auto device_projected = to_device(projected);
  const auto device_hidden = to_device(hidden);
  const auto device_post = to_device(post);
  device_ops::add_norm_quantize({.projected = device_projected.data(),
                                 .post_norm = device_post.data(),
                                 .hidden = device_hidden.data(),
                                 .eps = kEps,
                                 .num_tokens = tokens,
                                 .hidden_size = columns},
                                nullptr);
  wait();
  expect_hidden(to_host(device_hidden), hidden, exact_norms(projected, post), 1.0F);
}

void check_geglu_quantize(const InputShape& shape) {
  const std::vector<Bf16> gate_up = test_rows(shape.tokens, 2 * shape.columns, 15, 3.0F);
  const auto columns = static_cast<size_t>(shape.columns);
  std::vector<double> expected(static_cast<size_t>(shape.tokens) * columns);
  for (size_t i = 0; i < expected.size(); ++i) {
    const size_t at = i / columns * 2 * columns + i % columns;
    const double x = to_float(gate_up[at]);
    const double u = std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x);
    expected[i] = x / (1.0 + std::exp(-2.0 * u)) * static_cast<double>(to_float(gate_up[at + columns]));
  }
  const auto device_gate_up = to_device(gate_up);
  const InputBytes bytes = run_twice(shape, [&](const GemmInput& out) {
    device_ops::geglu_quantize(
        {.gate_up = device_gate_up.data(), .num_tokens = shape.tokens, .intermediate_size = shape.columns, .out = out},
        nullptr);
  });
  expect_input(InputBuffer(shape), bytes, expected);
}

void check_quantize(const InputShape& shape) {
  std::vector<Bf16> rows = test_rows(shape.tokens, shape.columns, 16);
  // NaN, infinities, subnormals and the largest value, each in a row of its own.
  constexpr uint16_t kSpecials[] = {0x7FC0, 0x7F80, 0xFF80, 0x0001, 0x7F7F};
  for (size_t i = 0; i < std::size(kSpecials) && static_cast<int64_t>(i) + 4 < shape.tokens; ++i) {
    rows[(i + 4) * static_cast<size_t>(shape.columns) + 5] = Bf16{kSpecials[i]};
  }
  if (shape.tokens > 1) rows[static_cast<size_t>(shape.columns) + 3] = Bf16{0x0001};  // alone among zeros
  const auto device_rows = to_device(rows);
  const InputBytes bytes = run_twice(shape, [&](const GemmInput& out) {
    device_ops::quantize({.rows = device_rows.data(), .num_tokens = shape.tokens, .width = shape.columns, .out = out},
                         nullptr);
  });
  expect_cpu_codes(InputBuffer(shape), bytes, to_floats(rows));
}

void check_last_rows(int64_t sequences, int64_t columns) {
  const int64_t stride = columns + 24;
  std::vector<int32_t> query_start{0};
  for (int64_t b = 0; b < sequences; ++b) query_start.push_back(query_start.back() + static_cast<int32_t>(1 + b % 3));
  const std::vector<Bf16> rows = test_rows(query_start.back(), stride, 19);
  std::vector<Bf16> expected;
  for (int64_t b = 0; b < sequences; ++b) {
    const auto row = rows.begin() + (query_start[static_cast<size_t>(b) + 1] - 1) * stride;
    expected.insert(expected.end(), row, row + columns);
  }
  const auto device_rows = to_device(rows);
  const auto device_start = to_device(query_start);
  const auto out = poisoned<Bf16>(sequences * columns + 64);
  device_ops::last_rows({.rows = device_rows.data(),
                         .stride = stride,
                         .query_start = device_start.data(),
                         .num_sequences = sequences,
                         .width = columns,
                         .out = out.data()},
                        nullptr);
  wait();
  const std::vector<Bf16> found = to_host(out);
  const auto written = found.begin() + sequences * columns;
  EXPECT_TRUE(std::equal(found.begin(), written, expected.begin(), expected.end()));
  EXPECT_TRUE(std::all_of(written, found.end(), [](Bf16 value) { return value.bits == 0xFFFF; }));
}

void check_final_norm(int64_t rows, int64_t columns) {
  constexpr int64_t kTokens = 19;
  const std::vector<Bf16> hidden = test_rows(kTokens, columns, 17);
  const std::vector<float> weights = test_weights(columns, 18);
  std::vector<int32_t> gather(static_cast<size_t>(rows));
  for (size_t i = 0; i < gather.size(); ++i) gather[i] = i % 5 == 3 ? -1 : static_cast<int32_t>(7 * i % kTokens);
  const auto device_hidden = to_device(hidden);
  const auto device_weights = to_device(weights);
  const auto device_gather = to_device(gather);
  const auto out = poisoned<Bf16>(rows * columns + 64);
  device_ops::final_norm({.hidden = device_hidden.data(),
                          .rows = device_gather.data(),
                          .num_rows = rows,
                          .hidden_size = columns,
                          .norm = device_weights.data(),
                          .eps = kEps,
                          .out = out.data()},
                         nullptr);
  wait();
  const std::vector<Bf16> got = to_host(out);
  std::vector<double> expected(static_cast<size_t>(columns));
  for (size_t row = 0; row < gather.size(); ++row) {
    const Bf16* const values = got.data() + row * expected.size();
    if (gather[row] >= 0) exact_norm(hidden.data() + gather[row] * columns, weights, expected.data());
    for (size_t i = 0; i < expected.size(); ++i) {
      if (gather[row] < 0) {
        ASSERT_EQ(values[i].bits, 0xFFFF) << "padding row " << row;
      } else {
        ASSERT_NEAR(to_float(values[i]), expected[i], 0x1p-8 * std::abs(expected[i]) * (1 + 1e-3)) << row << " " << i;
      }
    }
  }
  for (auto i = static_cast<size_t>(rows * columns); i < got.size(); ++i) ASSERT_EQ(got[i].bits, 0xFFFF);
}

}  // namespace quaver::testing
