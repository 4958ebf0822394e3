// The FP8 tensor core of Hopper as arithmetic: D = A*B + C of wgmma.mma_async .f32.e4m3.e4m3, K = 32 an instruction.
//
// Measured on an H200 and equal to it in every bit (tests/golden/fp8_accumulator_h200.txt): with e = the largest of the
// exponents of C and of the 32 products (the sum of the two E4M3 exponents, not normalised; -6 for a subnormal),
// every product and C are truncated toward zero to a multiple of 2^(e-13), added exactly, and the sum is truncated
// toward zero to 13 fraction bits. Compared with FP32 that loses 10 bits each instruction, always toward zero: a bias.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace quaver {

enum class Accumulator : uint8_t {
  kHardware13,  ///< the tensor core: 13 fraction bits, truncating
  kFp32,        ///< FP32 with one rounding a product, in the order of k
};

inline constexpr int kMmaDepth = 32;  ///< products an instruction adds (K)
inline constexpr int kAccumulatorFractionBits = 13;

/// One row of A: `depth` E4M3 values, padded with zeros to a multiple of kMmaDepth.
class MmaRow {
 public:
  explicit MmaRow(int depth);
  void set(int k, uint8_t code);

 private:
  friend class MmaMatrix;
  std::vector<float> values_;
  std::vector<int8_t> exponents_;
  std::vector<uint8_t> nan_;
};

/// B: [depth][lanes] E4M3 values, padded with zeros; lane j makes element j of the result.
class MmaMatrix {
 public:
  MmaMatrix(int depth, int lanes);

  void set(int k, int lane, uint8_t code);
  void clear();
  [[nodiscard]] int depth() const noexcept { return depth_; }
  [[nodiscard]] int padded_lanes() const noexcept { return padded_lanes_; }

  /// d[lane] = sum over k in [first, last) of a[k] * b[k][lane] + (fresh ? 0 : d[lane]), instruction by instruction.
  /// `first` is a multiple of kMmaDepth, d has padded_lanes() elements. A NaN in a, in a lane or in d makes NaN.
  void multiply(const MmaRow& a, int first, int last, bool fresh, Accumulator accumulator, std::span<float> d) const;

 private:
  void step_hardware(const MmaRow& a, int k0, bool fresh, float* d) const;
  void step_fp32(const MmaRow& a, int k0, bool fresh, float* d) const;

  int depth_ = 0;
  int padded_lanes_ = 0;
  std::vector<float> values_;      // [padded depth][padded lanes], 0 for NaN codes
  std::vector<int8_t> exponents_;  // likewise
  std::vector<uint8_t> nan_;       // [padded depth / kMmaDepth][padded lanes]
  bool any_nan_ = false;
};

}  // namespace quaver
