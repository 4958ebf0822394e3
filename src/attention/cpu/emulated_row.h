// One query row of the emulation: its quantised Q, the keys it sees, and the online softmax over KV tiles.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <numbers>
#include <span>
#include <vector>

#include "attention/cpu/emulated.h"
#include "attention/tiles.h"
#include "core/accumulator.h"

namespace quaver::emulation {

inline constexpr float kLog2E = std::numbers::log2e_v<float>;
inline constexpr float kLn2 = std::numbers::ln2_v<float>;
inline constexpr float kPExponent = 8.0F;   ///< P is scaled by 2^8, so that E4M3 keeps weights down to 2^-17
inline constexpr float kLoScale = 0x1p-4F;  ///< hi + lo/16
inline constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

/// Q of one row in E4M3.
struct QueryRow {
  MmaRow hi;
  MmaRow lo;           ///< zeros in `single`
  float scale = 1.0F;  ///< Q = scale * (hi + lo/16): the smallest power of two with |Q| / scale <= 448, at least 2^-118
  tiles::KeyRange keys{};  ///< that the row sees
};

[[nodiscard]] QueryRow quantize_query(std::span<const float> q, Precision precision);

/// What one split of one row leaves for the combine.
struct RowResult {
  float maximum = kNegativeInfinity;  ///< m: an integer in log2 units
  float sum = 0.0F;                   ///< l: sum of 2^(s - m + 8)
  std::vector<float> out{};           ///< O: sum of 2^(s - m + 8) * V
};

/// Adds `part` to `total`; exact but for one FP32 rounding an element, as all factors are powers of two.
void add_split(RowResult& total, const RowResult& part);

/// How logits are made from S.
struct LogitScale {
  float to_log2 = 1.0F;   ///< S -> log2 units (no softcap), else S -> units of the cap
  float cap_log2 = 0.0F;  ///< softcap in log2 units; 0: none
};

/// The online softmax of one row over the tiles of one split.
class RowWalk {
 public:
  RowWalk(const QueryRow& row, LogitScale scale, const EmulationOptions& options, int padded_value_dim);

  /// One tile whose first key is `first_key`: k is [Dk][tile], v is [tile][Dv].
  void add_tile(int64_t first_key, const MmaMatrix& k, const MmaMatrix& v);
  [[nodiscard]] RowResult finish();

 private:
  void compute_logits(const MmaMatrix& k);
  void mask_and_scale(int64_t first_key);
  float advance_maximum();
  void exponentials(float alpha);
  void add_values(const MmaMatrix& v, float alpha);

  const QueryRow& row_;
  LogitScale scale_;
  const EmulationOptions& options_;
  bool split_;
  float maximum_ = kNegativeInfinity;
  std::array<float, 4> sums_{};
  std::vector<float> out_;     // O, or O_hi where P*V accumulates over all tiles
  std::vector<float> out_lo_;  // O_lo there
  MmaRow p_hi_;
  MmaRow p_lo_;
  std::vector<float> logits_;  // S, then s
  std::vector<float> hi_;      // accumulators
  std::vector<float> lo_;
};

}  // namespace quaver::emulation
