#include "attention/cpu/emulated_row.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/e4m3.h"

namespace quaver::emulation {
namespace {

constexpr int kPromotionDepth = 128;
constexpr int kLowestScaleExponent = -118;  // keeps 1 / scale a normal number

// x = hi + lo/16, the split of Q and P.
void set_split(MmaRow& hi, MmaRow& lo, int k, float x, bool split) {
  const uint8_t code = e4m3_encode(x);
  hi.set(k, code);
  if (split) lo.set(k, e4m3_encode((x - e4m3_decode(code)) / kLoScale));
}

// Smallest power of two s with amax / s <= 448 = 1.75 * 2^8; 1 for an all-zero row.
int scale_exponent(float amax) {
  if (!(amax > 0.0F)) return 0;
  const auto bits = std::bit_cast<uint32_t>(amax);
  const int above = (bits & 0x7FFFFFU) > 0x600000U ? 1 : 0;
  return std::max(kLowestScaleExponent, static_cast<int>(bits >> 23) - 127 - 8 + above);
}

float or_zero(float maximum) {
  return maximum == kNegativeInfinity ? 0.0F : maximum;
}

}  // namespace

QueryRow quantize_query(std::span<const float> q, Precision precision) {
  const auto depth = static_cast<int>(q.size());
  QueryRow row{.hi = MmaRow(depth), .lo = MmaRow(depth)};
  float amax = 0.0F;
  for (const float x : q) amax = std::fmax(amax, std::fabs(x));
  const int exponent = scale_exponent(amax);
  row.scale = std::ldexp(1.0F, exponent);
  const float inverse = std::ldexp(1.0F, -exponent);
  for (int d = 0; d < depth; ++d) {
    set_split(row.hi, row.lo, d, q[static_cast<size_t>(d)] * inverse, precision == Precision::kSplit);
  }
  return row;
}

void add_split(RowResult& total, const RowResult& part) {
  const float maximum = std::max(total.maximum, part.maximum);
  const float a = std::exp2(total.maximum - or_zero(maximum));
  const float b = std::exp2(part.maximum - or_zero(maximum));
  total.maximum = maximum;
  total.sum = std::fma(part.sum, b, total.sum * a);
  for (size_t d = 0; d < total.out.size(); ++d) total.out[d] = std::fma(part.out[d], b, total.out[d] * a);
}

RowWalk::RowWalk(const QueryRow& row, LogitScale scale, const EmulationOptions& options, int padded_value_dim)
    : row_(row),
      scale_(scale),
      options_(options),
      split_(options.precision == Precision::kSplit),
      out_(static_cast<size_t>(padded_value_dim), 0.0F),
      out_lo_(out_.size(), 0.0F),
      p_hi_(options.kv_tile),
      p_lo_(options.kv_tile),
      logits_(static_cast<size_t>(options.kv_tile)),
      hi_(std::max(logits_.size(), out_.size())),
      lo_(hi_.size()) {}

void RowWalk::add_tile(int64_t first_key, const MmaMatrix& k, const MmaMatrix& v) {
  compute_logits(k);
  mask_and_scale(first_key);
  const float alpha = advance_maximum();
  exponentials(alpha);
  add_values(v, alpha);
}

void RowWalk::compute_logits(const MmaMatrix& k) {
  const std::span<float> hi(hi_.data(), logits_.size());
  const std::span<float> lo(lo_.data(), logits_.size());
  const int chunk = options_.promote_qk ? kPromotionDepth : k.depth();
  for (int first = 0; first < k.depth(); first += chunk) {
    const int last = std::min(first + chunk, k.depth());
    k.multiply(row_.hi, first, last, true, options_.accumulator, hi);
    if (split_) {
      k.multiply(row_.lo, first, last, true, options_.accumulator, lo);
      for (size_t j = 0; j < hi.size(); ++j) hi[j] = std::fma(lo[j], kLoScale, hi[j]);
    }
    for (size_t j = 0; j < hi.size(); ++j) logits_[j] = first == 0 ? hi[j] : logits_[j] + hi[j];
  }
}

// S stays in accumulator units unless it is capped: the scale to log2 units is part of the FMA in the exponent.
void RowWalk::mask_and_scale(int64_t first_key) {
  for (size_t j = 0; j < logits_.size(); ++j) {
    float& s = logits_[j];
    const int64_t key = first_key + static_cast<int64_t>(j);
    if (key < row_.keys.first || key >= row_.keys.last) {
      s = kNegativeInfinity;
    } else if (scale_.cap_log2 > 0.0F) {
      s = scale_.cap_log2 * std::tanh(s * scale_.to_log2);
    }
  }
}

// The running maximum rounded up to an integer; NaN logits do not move it. Returns the rescale factor.
float RowWalk::advance_maximum() {
  const float factor = scale_.cap_log2 > 0.0F ? 1.0F : scale_.to_log2;
  float top = kNegativeInfinity;
  for (const float s : logits_) {
    // -inf * 0 would be NaN: a masked key stays masked whatever the scale
    const float log2_units = s == kNegativeInfinity ? s : s * factor;
    top = log2_units > top ? log2_units : top;
  }
  const float previous = maximum_;
  maximum_ = std::max(maximum_, std::ceil(top));
  return std::exp2(previous - or_zero(maximum_));
}

void RowWalk::exponentials(float alpha) {
  const float factor = scale_.cap_log2 > 0.0F ? 1.0F : scale_.to_log2;
  const float offset = kPExponent - or_zero(maximum_);
  for (float& s : logits_) s = s == kNegativeInfinity ? 0.0F : std::exp2(std::fma(s, factor, offset));
  for (float& sum : sums_) sum *= alpha;
  for (size_t j = 0; j < logits_.size(); j += 2) sums_[j % 8 / 2] += logits_[j] + logits_[j + 1];
}

void RowWalk::add_values(const MmaMatrix& v, float alpha) {
  for (int j = 0; j < options_.kv_tile; ++j) set_split(p_hi_, p_lo_, j, logits_[static_cast<size_t>(j)], split_);
  const int tile = options_.kv_tile;
  if (!options_.fresh_accumulator) {
    for (float& o : out_) o *= alpha;
    for (float& o : out_lo_) o *= alpha;
    v.multiply(p_hi_, 0, tile, false, options_.accumulator, out_);
    if (split_) v.multiply(p_lo_, 0, tile, false, options_.accumulator, out_lo_);
    return;
  }
  const std::span<float> hi(hi_.data(), out_.size());
  const std::span<float> lo(lo_.data(), out_.size());
  v.multiply(p_hi_, 0, tile, true, options_.accumulator, hi);
  if (split_) {
    v.multiply(p_lo_, 0, tile, true, options_.accumulator, lo);
    for (size_t d = 0; d < out_.size(); ++d) hi[d] = std::fma(lo[d], kLoScale, hi[d]);
  }
  for (size_t d = 0; d < out_.size(); ++d) out_[d] = std::fma(out_[d], alpha, hi[d]);
}

RowResult RowWalk::finish() {
  for (size_t d = 0; d < out_.size(); ++d) out_[d] = std::fma(out_lo_[d], kLoScale, out_[d]);
  return {.maximum = maximum_, .sum = (sums_[0] + sums_[1]) + (sums_[2] + sums_[3]), .out = std::move(out_)};
}

}  // namespace quaver::emulation
