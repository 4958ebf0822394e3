// The parts of a tile that several CTAs compute (tiles.h, ranges). With its products done, each part reports; the last
// to report adds all parts up and stores the tile, the others write their sums to the workspace and leave. It waits for
// those sums, but only for CTAs that have reported: they run, and wait for nobody. Whoever is last adds the same
// numbers in the order of the parts.
#pragma once

#include "gemm/packed_fp8/mainloop.cuh"

namespace quaver::packed_fp8 {

/// Each warpgroup does so for its own rows.
template <class Traits>
class PartialSums {
 public:
  __device__ PartialSums(const Parameters& p, SharedState<Traits>& shared, const MathThread& thread, const Work& work)
      : p_(p),
        thread_(thread),
        work_(work),
        part_((static_cast<int>(blockIdx.x) - work.first_cta) / p.grid.token_tiles()),
        counter_(p.arrivals + kMathWarpgroups * work.first_cta + thread.warpgroup),
        before_(shared.reports_before[thread.warpgroup]) {}

  /// Replaces the sums of this part by those of the whole tile and says true, or hands them over.
  __device__ bool add_up(float (&total)[Traits::kAccumulators]) {
    if (thread_.index() == 0) before_ = ptx::atomic_add_acq_rel(counter_, kReport);
    thread_.sync_warpgroup();
    if (before_ / kReport < work_.parts - 1) {
      write(total);
      thread_.sync_warpgroup();
      if (thread_.index() == 0) ptx::atomic_add_acq_rel(counter_, kWritten);
      return false;
    }
    if (thread_.index() == 0) {
      for (int now = before_; now % kReport < work_.parts - 1;) now = ptx::load_acquire(counter_);
      *counter_ = 0;  // for the next launch
    }
    thread_.sync_warpgroup();
    add_others(total);
    return true;
  }

 private:
  static constexpr int kWritten = 1;
  static constexpr int kReport = 1 << 16;
  static constexpr int kBlockSums = 128 * kMathWarpgroups;  ///< float4 of a block: one a math thread

  /// Sums of a part as math threads hold them: [blocks of 8 tokens][math threads], coalesced. A CTA has at most two:
  /// the end of the tile that its range begins in, and the beginning of the one that it ends in.
  [[nodiscard]] __device__ float4* sums(int part) const {
    constexpr int64_t kPartSums = int64_t{Traits::kBlocks} * kBlockSums;
    const int cta = work_.first_cta + part * p_.grid.token_tiles();
    return p_.partial_sums + (2 * cta + (part == 0 ? 1 : 0)) * kPartSums + thread_.warpgroup * 128 + thread_.index();
  }

  __device__ void write(const float (&total)[Traits::kAccumulators]) const {
    float4* const to = sums(part_);
#pragma unroll
    for (int j = 0; j < Traits::kBlocks; ++j) {
      to[j * kBlockSums] = make_float4(total[4 * j], total[4 * j + 1], total[4 * j + 2], total[4 * j + 3]);
    }
  }

  /// x += the sums of another part.
  __device__ void add(int part, float (&x)[Traits::kAccumulators]) const {
    const float4* const from = sums(part);
#pragma unroll
    for (int j = 0; j < Traits::kBlocks; ++j) {
      const float4 other = __ldcg(from + j * kBlockSums);
      x[4 * j] += other.x;
      x[4 * j + 1] += other.y;
      x[4 * j + 2] += other.z;
      x[4 * j + 3] += other.w;
    }
  }

  /// The parts before this one are added up first; where that is one alone, the two may change places.
  __device__ void add_others(float (&total)[Traits::kAccumulators]) const {
    float before[Traits::kAccumulators];
#pragma unroll
    for (float& x : before) x = 0.0F;
#pragma unroll 1
    for (int part = 0; part < part_; ++part) add(part, before);
#pragma unroll
    for (int i = 0; i < Traits::kAccumulators; ++i) total[i] += before[i];
#pragma unroll 1
    for (int part = part_ + 1; part < work_.parts; ++part) add(part, total);
  }

  const Parameters& p_;
  const MathThread& thread_;
  const Work& work_;
  int part_;
  int* counter_;
  int& before_;  ///< the counter when this part reported
};

}  // namespace quaver::packed_fp8
