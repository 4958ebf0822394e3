#include <cmath>

#include "core/check.h"
#include "ops/rope.h"

namespace quaver {
namespace {

constexpr int64_t kParallelPairs = 1 << 13;  // below, starting threads costs more than the work

}  // namespace

std::vector<float> rope_frequencies(const RopeShape& shape) {
  check(shape.head_dim > 0 && shape.head_dim % 2 == 0, "head dim ", shape.head_dim, ": expected an even number");
  check(shape.rotary_pairs >= 0 && shape.rotary_pairs <= shape.head_dim / 2, "rotary pairs ", shape.rotary_pairs,
        ": expected at most ", shape.head_dim / 2);
  std::vector<float> frequencies;
  for (int j = 0; j < shape.rotary_pairs; ++j) {
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(shape.head_dim);
    const auto power = static_cast<float>(std::pow(shape.theta, static_cast<double>(exponent)));
    frequencies.push_back(1.0F / power / static_cast<float>(shape.factor));
  }
  return frequencies;
}

void rope_table(std::span<const float> frequencies, std::span<const int32_t> positions, RopeTable& table) {
  const auto pairs = static_cast<int64_t>(frequencies.size());
  const auto count = static_cast<int64_t>(positions.size());
  table.cos.resize(static_cast<size_t>(count * pairs));
  table.sin.resize(static_cast<size_t>(count * pairs));
#pragma omp parallel for schedule(static) if (count * pairs >= kParallelPairs)
  for (int64_t row = 0; row < count; ++row) {
    const auto position = static_cast<float>(positions[static_cast<size_t>(row)]);
    for (int64_t j = 0; j < pairs; ++j) {
      const double angle = position * frequencies[static_cast<size_t>(j)];  // FP32 product
      const auto index = static_cast<size_t>(row * pairs + j);
      table.cos[index] = static_cast<float>(std::cos(angle));
      table.sin[index] = static_cast<float>(std::sin(angle));
    }
  }
}

void apply_rope(const RopeShape& shape, const RopeTable& table, int64_t num_positions, int num_heads, float* x) {
  const int64_t half = shape.head_dim / 2;
  const int64_t pairs = shape.rotary_pairs;
  check(static_cast<int64_t>(table.cos.size()) == num_positions * pairs, "rope table size ", table.cos.size(),
        ": expected ", num_positions * pairs);
#pragma omp parallel for schedule(static) if (num_positions * num_heads * pairs >= kParallelPairs)
  for (int64_t row = 0; row < num_positions; ++row) {
    const float* const cos = table.cos.data() + row * pairs;
    const float* const sin = table.sin.data() + row * pairs;
    for (int head = 0; head < num_heads; ++head) {
      float* const low = x + (row * num_heads + head) * shape.head_dim;
      float* const high = low + half;
      for (int64_t j = 0; j < pairs; ++j) {
        const float a = low[j];
        const float b = high[j];
        low[j] = a * cos[j] - b * sin[j];
        high[j] = b * cos[j] + a * sin[j];
      }
    }
  }
}

}  // namespace quaver
