// Shape and device to tile grid: a pure function, tested without a GPU.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "gemm/packed_fp8/tiles.h"

namespace quaver::packed_fp8 {

/// y[M, N] = x[M, K] W[N, K]^T.
struct GemmShape {
  int64_t m = 0;  ///< tokens
  int64_t n = 0;  ///< out features
  int64_t k = 0;  ///< in features
};

/// What the scales of a weight are, and with them those of the activations.
enum class Scaling : uint8_t {
  kOuter,  ///< a weight scale per row, an activation scale per token (per-tensor scales are these, all alike)
  kBlock,  ///< a weight scale per 128x128 block, an activation scale per token and 128 columns
};

/// What becomes of the sums.
enum class Output : uint8_t {
  kRows,   ///< y
  kGeglu,  ///< gelu_tanh(gate) * up of weight rows that take turns, 8 of gate, 8 of up (layout.h, part_row())
};

/// In which order the products of an output are added up.
enum class SumOrder : uint8_t {
  kAny,    ///< as is fastest for m
  kFixed,  ///< whatever m is, the same: so are the bits of a token's outputs
};

/// Row tiles begin at multiples of so many groups of 8 rows: gate and up of an output are in one tile.
[[nodiscard]] QUAVER_HD constexpr int row_granule(Output output) {
  return output == Output::kGeglu ? 2 : 1;
}

/// Tokens of a tile that kernels are compiled for. The last one only without block scales.
inline constexpr std::array kTokenTiles{8, 16, 32, 64, 128, 192};

/// Rows of a high tile: more than 128, with 128 tokens. Its tokens are the 64-row operand of the WGMMA, its rows the
/// other one, so that a third fewer token bytes pass L2 and no row is multiplied in vain. With the gate only the last.
inline constexpr std::array kHighTiles{144, 176};
inline constexpr int kHighTileTokens = 128;

inline constexpr int kMaxCluster = 4;  ///< CTAs

/// How many clusters of each size run at once (index: CTAs a cluster; 0 is unused).
using MaxClusters = std::array<int, kMaxCluster + 1>;

struct GemmPlan {
  TileGrid grid{};
  int num_clusters = 0;  ///< of the launch; each takes every num_clusters-th tile, or a range
  int waves = 0;         ///< tiles that the busiest cluster takes; 0 with ranges
  double clocks = 0.0;   ///< what the plan is judged by: estimated, of 1.97 GHz
};

/// What plan_gemm() chooses from: of each kind the best one.
[[nodiscard]] std::vector<GemmPlan> possible_plans(const GemmShape& shape, Scaling scaling,
                                                   const MaxClusters& max_clusters, Output output = Output::kRows,
                                                   SumOrder order = SumOrder::kAny);

/// The plan with the fewest clocks. Throws Error(kInvalidArgument) for sizes outside 1 … 2^22 (m = 0 is for the caller
/// to skip) and, with kGeglu, an n that is no multiple of 16.
[[nodiscard]] GemmPlan plan_gemm(const GemmShape& shape, Scaling scaling, const MaxClusters& max_clusters,
                                 Output output = Output::kRows, SumOrder order = SumOrder::kAny);

/// One line, e.g. "tile 112x128, pairs, K in 1, 198 tiles on 66 clusters (3 waves)" or "tile 128x64, 132 ranges of 54
/// chunks".
[[nodiscard]] std::string to_string(const GemmPlan& plan);

}  // namespace quaver::packed_fp8
