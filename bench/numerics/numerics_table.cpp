// Error of the FP8 kernels' arithmetic against float64 on the same FP8 cache, before output rounding: the numbers of
// docs/numerics.md. Usage: numerics_table OUT.json [largest context]; render_tables.py puts them into the document.
//
// Data: Q, K, V ~ N(0, 1), Q rounded to BF16, K and V to E4M3, softmax scale 1/sqrt(d), one kv head, 8 query heads.
// "peaked": every query has a key of its own whose logit lies 10 above all others of the row.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "arguments.h"
#include "attention/cpu/emulated.h"
#include "attention/tiles.h"
#include "testing/cases.h"
#include "testing/metric.h"
#include "testing/random.h"

namespace quaver {
namespace {

constexpr int kRows = 8;
constexpr float kPeak = 10.0F;

struct Data {
  std::vector<float> q;
  std::vector<float> k;
  std::vector<float> v;
};

Data random_data(int dim, int context, bool peaked) {
  testing::Random random(static_cast<uint64_t>(dim) * 1'000'003U + static_cast<uint64_t>(context));
  const auto normals = [&random](int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = random.normal();
    return values;
  };
  Data data{
      .q = normals(int64_t{kRows} * dim), .k = normals(int64_t{context} * dim), .v = normals(int64_t{context} * dim)};
  if (!peaked) return data;
  for (int row = 0; row < kRows; ++row) {
    const float* q = data.q.data() + static_cast<size_t>(row) * static_cast<size_t>(dim);
    const auto dot = [&](const float* other) {
      double sum = 0.0;
      for (int d = 0; d < dim; ++d) sum += double{q[d]} * double{other[d]};
      return sum;
    };
    double top = 0.0;
    for (int64_t key = 0; key < context; ++key) top = std::max(top, dot(data.k.data() + key * dim));
    const double length = (top + kPeak * std::sqrt(static_cast<double>(dim))) / dot(q);
    float* planted = data.k.data() + (int64_t{2} * row + 1) * context / (2 * kRows) * dim;
    for (int d = 0; d < dim; ++d) planted[d] = static_cast<float>(length * double{q[d]});
  }
  return data;
}

testing::Case make_case(const Data& data, int dim, int context) {
  const auto from = [dim](const std::vector<float>& values) {
    return [&values, dim](int, int64_t token, int head, int d) {
      return values[static_cast<size_t>((token + head) * dim + d)];  // Q has one token, K and V one head
    };
  };
  return testing::Case({.query_lens = {1},
                        .kv_lens = {context},
                        .num_q_heads = kRows,
                        .kv = {.num_kv_heads = 1, .head_dim_k = dim, .head_dim_v = dim, .page_size = 64},
                        .out_dtype = DType::kF32,
                        .query = from(data.q),
                        .key = from(data.k),
                        .value = from(data.v)});
}

nlohmann::json measure(int dim, int context, bool peaked) {
  testing::Case c = make_case(random_data(dim, context, peaked), dim, context);
  const OracleOutput expected = c.expected();
  nlohmann::json results = nlohmann::json::array();
  const auto add = [&](const EmulationOptions& options) {
    attention_emulated(c.problem, options, c.args);
    const std::vector<float> out = c.out_values();
    double lse_error = 0.0;
    for (size_t row = 0; row < c.lse.size(); ++row) {
      lse_error = std::max(lse_error, std::abs(double{c.lse[row]} - expected.lse[row]));
    }
    results.push_back(
        {{"head_dim", dim},
         {"context", context},
         {"data", peaked ? "peaked" : "normal"},
         {"precision", precision_name(options.precision)},
         {"accumulator", options.accumulator == Accumulator::kFp32 ? "fp32" : "hardware13"},
         {"levels", options.fresh_accumulator ? 2 : 1},
         {"promote_qk", options.promote_qk},
         {"kv_tile", options.kv_tile},
         {"relative_l2",
          testing::deviation(std::span<const float>(out), std::span<const double>(expected.out), dim).relative_l2},
         {"lse_max_error", lse_error}});
  };
  for (const Precision precision : {Precision::kSplit, Precision::kSingle}) {
    const int tile = tiles::kv_tile(tiles::KernelFamily::kDecode, dim);
    const EmulationOptions kernel{.precision = precision, .kv_tile = tile};
    add(kernel);
    EmulationOptions changed = kernel;
    changed.fresh_accumulator = false;
    add(changed);
    changed = kernel;
    changed.accumulator = Accumulator::kFp32;
    add(changed);
    if (dim < 256) continue;
    changed = kernel;
    changed.promote_qk = true;
    add(changed);
  }
  return results;
}

void run(const std::string& path, int largest_context) {
  bench::check_folder_of(path);
  nlohmann::json table = {{"what", "relative L2 against float64 on the same FP8 cache, FP32 output"},
                          {"rows", kRows},
                          {"peak", kPeak},
                          {"results", nlohmann::json::array()}};
  for (const int dim : {64, 128, 256, 512}) {
    for (const int context : {1024, 8192, 32768, 131072}) {
      for (const bool peaked : {false, true}) {
        if (context > largest_context) continue;
        const auto start = std::chrono::steady_clock::now();
        for (nlohmann::json& result : measure(dim, context, peaked)) table["results"].push_back(std::move(result));
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        std::fprintf(stderr, "d %d context %d %s: %.1f s\n", dim, context, peaked ? "peaked" : "normal",
                     seconds.count());
      }
    }
  }
  bench::write_file(path, table.dump(1) + "\n");
}

}  // namespace
}  // namespace quaver

int main(int argc, char** argv) {
  try {
    if (argc < 2) {
      std::fprintf(stderr, "usage: numerics_table OUT.json [largest context]\n");
      return 1;
    }
    quaver::run(argv[1], argc > 2 ? quaver::bench::integer_argument("largest context", argv[2], 1) : 131072);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "numerics_table: %s\n", error.what());
    return 1;
  }
  return 0;
}
