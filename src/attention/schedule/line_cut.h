// How the line of all units is cut into pieces. CTAs of one grid do not run equally fast (equal pieces of 60 us finish
// between 45 and 71 us), so a long line is cut in rounds: 7/8 of it in one piece a CTA, 1/16 in the next round, 1/32 …
// CTA c begins with piece c; later pieces go to whoever is ready, by an atomic ticket. The cut itself depends on the
// lengths alone, never on who runs what: results repeat bit for bit.
#pragma once

#include "attention/tiles.h"

namespace quaver::schedule {

/// Most rounds of a line: memory for partial results is sized for it.
inline constexpr int kMaxRounds = 6;

/// Lines with fewer units a CTA are cut in one round: switching items costs a CTA about one unit, 1.4 % at 130 units.
inline constexpr int kMinUnitsForRounds = 256;

/// A further round is worth it while its pieces have at least this many units …
inline constexpr int kMinRoundUnits = 3;

/// … and while an item of average length is cut into at most this many parts: one pass of combine::merge_parts().
inline constexpr int kMaxPartsPerItem = 20;

struct LineCut {
  int total = 0;      ///< units
  int per_round = 1;  ///< pieces of one round
  int rounds = 1;

  [[nodiscard]] QUAVER_HD constexpr int num_pieces() const { return per_round * rounds; }

  /// First unit of a round: 0, 7/8, 15/16 … of the line; the last round takes the rest.
  [[nodiscard]] QUAVER_HD constexpr int round_begin(int round) const {
    if (round == 0) return 0;
    return round >= rounds ? total : total - (total >> (round + 2));
  }

  /// First unit of a piece; num_pieces() gives the end of the line.
  [[nodiscard]] QUAVER_HD constexpr int begin(int piece) const {
    const int round = piece / per_round;
    const int first = round_begin(round);
    return first + static_cast<int>(tiles::even_cut(round_begin(round + 1) - first, per_round, piece % per_round));
  }

  /// The piece that holds `unit`: the inverse of begin().
  [[nodiscard]] QUAVER_HD constexpr int owner(int unit) const {
    int round = 0;
    while (unit >= round_begin(round + 1)) ++round;
    const int first = round_begin(round);
    return round * per_round +
           static_cast<int>(tiles::even_cut_owner(round_begin(round + 1) - first, per_round, unit - first));
  }
};

/// The cut of `items` items with `total` units for a grid of `grid` CTAs. A piece has at least `min_units`, so a tiny
/// line leaves CTAs without work.
[[nodiscard]] QUAVER_HD constexpr LineCut cut_line(int total, int64_t items, int grid, int min_units, int max_rounds) {
  LineCut cut{.total = total, .per_round = grid};
  if (total / min_units < grid) cut.per_round = total < min_units ? 1 : total / min_units;
  if (total / grid < kMinUnitsForRounds) return cut;
  while (cut.rounds < max_rounds) {
    const int64_t units = (total >> (cut.rounds + 2)) / grid;  // of the pieces of one more round
    if (units < kMinRoundUnits || units * kMaxPartsPerItem * items < total) break;
    ++cut.rounds;
  }
  return cut;
}

}  // namespace quaver::schedule
