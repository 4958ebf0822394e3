#include <algorithm>
#include <array>

#include "core/cuda.h"
#include "kv_cache/device_cache.h"

namespace quaver {
namespace {

constexpr int kMaxCopies = 256;  // a launch: their ids travel as kernel parameters, 2 KB of the 4 that every GPU takes
constexpr int kThreads = 256;
constexpr int64_t kBytesPerCta = 16 * kThreads * 4;

struct Parameters {
  uint8_t* slabs = nullptr;
  int64_t slab_stride = 0;
  int64_t page_stride = 0;
  int64_t page_bytes = 0;
  std::array<PageCopy, kMaxCopies> copies{};
};

/// Grid: (pieces of a page, copies, slabs).
__global__ void __launch_bounds__(kThreads) quaver_copy_pages(const __grid_constant__ Parameters p) {
  uint8_t* slab = p.slabs + blockIdx.z * p.slab_stride;
  const PageCopy copy = p.copies[blockIdx.y];
  const auto* from = reinterpret_cast<const uint4*>(slab + copy.from * p.page_stride);
  auto* to = reinterpret_cast<uint4*>(slab + copy.to * p.page_stride);
  const int64_t begin = blockIdx.x * (kBytesPerCta / 16) + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kBytesPerCta / 16 / kThreads; ++i) {
    const int64_t at = begin + i * kThreads;
    if (at < p.page_bytes / 16) to[at] = from[at];
  }
}

/// Copies of [begin, …) that may run side by side: none touches a page that another one writes.
size_t independent(std::span<const PageCopy> copies, size_t begin) {
  size_t end = begin;
  const auto independent_of = [](const PageCopy& a, const PageCopy& b) {
    return a.to != b.to && a.to != b.from && a.from != b.to;
  };
  while (end < copies.size() && end - begin < kMaxCopies &&
         std::all_of(
             copies.begin() + static_cast<int64_t>(begin), copies.begin() + static_cast<int64_t>(end),
             [&](const PageCopy& earlier) { return independent_of(earlier, copies[end]); })) {
    ++end;
  }
  return end;
}

}  // namespace

void copy_pages(const TensorView& slabs, std::span<const PageCopy> copies, cudaStream_t stream) {
  check(slabs.given() && slabs.dtype == DType::kU8 && slabs.rank == 3 && slabs.stride(2) == 1 &&
            slabs.device.kind == Device::Kind::kCuda,
        "slabs ", to_string(slabs), ": expected u8[num_slabs, num_pages, page_bytes] on cuda, bytes of a page dense");
  check(reinterpret_cast<uintptr_t>(slabs.data) % 16 == 0 && slabs.stride(0) % 16 == 0 && slabs.stride(1) % 16 == 0 &&
            slabs.dim(2) % 16 == 0,
        "slabs ", to_string(slabs), ": expected address, strides and page bytes that are multiples of 16");
  check(slabs.dim(0) <= UINT16_MAX, "slabs ", slabs.dim(0), ": expected at most ", UINT16_MAX);
  for (const PageCopy& copy : copies) {
    for (const int64_t page : {copy.from, copy.to}) {
      check(page >= 0 && page < slabs.dim(1), "page ", page, ": expected 0 to ", slabs.dim(1) - 1);
    }
  }
  if (slabs.num_elements() == 0) return;
  Parameters parameters{.slabs = static_cast<uint8_t*>(slabs.data),
                        .slab_stride = slabs.strides[0],
                        .page_stride = slabs.strides[1],
                        .page_bytes = slabs.dim(2)};
  const int64_t pieces = (slabs.dim(2) + kBytesPerCta - 1) / kBytesPerCta;
  for (size_t begin = 0; begin < copies.size();) {
    const size_t end = independent(copies, begin);
    std::copy(copies.begin() + static_cast<int64_t>(begin), copies.begin() + static_cast<int64_t>(end),
              parameters.copies.begin());
    const dim3 grid(static_cast<unsigned>(pieces), static_cast<unsigned>(end - begin),
                    static_cast<unsigned>(slabs.dim(0)));
    launch(quaver_copy_pages, grid, kThreads, 0, stream, parameters);
    begin = end;
  }
}

}  // namespace quaver
