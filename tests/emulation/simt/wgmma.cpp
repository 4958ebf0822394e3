// WGMMA: threads note what they issue; products run when all threads of the warpgroup wait for them, with the tensor
// core's accumulator (core/accumulator.h). An operand that was given up too early is then no longer there, and a result
// that nobody waited for never is.
#include <array>

#include "core/accumulator.h"
#include "simt/cta.h"

namespace quaver::simt {
namespace {

constexpr size_t kThreads = 128;
constexpr int kRows = 64;

/// A matrix in shared memory as a descriptor names it: K-major core matrices of 8 rows x 16 bytes, no swizzle.
class Operand {
 public:
  Operand(const Cta& cta, uint64_t descriptor, int rows)
      : begin_(static_cast<uint32_t>(descriptor & 0x3FFF) << 4),
        leading_(static_cast<int>(descriptor >> 16 & 0x3FFF) << 4),
        stride_(static_cast<int>(descriptor >> 32 & 0x3FFF) << 4) {
    expect(descriptor >> 46 == 0, "matrix descriptor: expected no offset and no swizzle");
    expect(begin_ % 16 == 0, "matrix at ", place(begin_), ": expected a multiple of 16");
    const int bytes = (rows / 8 - 1) * stride_ + leading_ + 128;
    bytes_ = cta.memory.pointer(begin_, bytes);
    expect(bytes_ != nullptr, "WGMMA operand of ", bytes, " bytes at ", place(begin_), ": expected inside the ",
           cta.memory.dynamic_bytes, " bytes of dynamic shared memory");
  }
  [[nodiscard]] uint8_t at(int row, int k) const {
    return bytes_[row / 8 * stride_ + k / 16 * leading_ + row % 8 * 16 + k % 16];
  }

 private:
  uint32_t begin_;
  int leading_;
  int stride_;
  const uint8_t* bytes_ = nullptr;
};

/// Code k of row `row` of A, from the registers of the four threads that hold it.
uint8_t register_code(const Thread* threads, size_t index, int row, int k) {
  const Thread& thread = threads[row / 16 * 32 + row % 8 * 4 + k % 16 / 4];
  const uint32_t word = thread.products[index].a_codes[k / 16 * 2 + row % 16 / 8];
  return static_cast<uint8_t>(word >> 8 * (k % 4));
}

void multiply(const Cta& cta, Thread* threads, size_t index) {
  const Product& product = threads[0].products[index];
  for (size_t t = 1; t < kThreads; ++t) {
    expect(threads[t].products.size() > index, "WGMMA: expected the same from all threads of a warpgroup");
    const Product& other = threads[t].products[index];
    expect(other.n == product.n && other.b == product.b && other.accumulate == product.accumulate &&
               other.group == product.group && other.a == product.a && other.a_in_registers == product.a_in_registers,
           "WGMMA: expected the same operands from all threads of a warpgroup");
  }
  MmaMatrix b(kMmaDepth, product.n);
  const Operand b_codes(cta, product.b, product.n);
  for (int lane = 0; lane < product.n; ++lane) {
    for (int k = 0; k < kMmaDepth; ++k) b.set(k, lane, b_codes.at(lane, k));
  }
  MmaRow a(kMmaDepth);
  std::vector<float> d(static_cast<size_t>(b.padded_lanes()));
  for (int row = 0; row < kRows; ++row) {
    if (product.a_in_registers) {
      for (int k = 0; k < kMmaDepth; ++k) a.set(k, register_code(threads, index, row, k));
    } else {
      const Operand a_codes(cta, product.a, kRows);
      for (int k = 0; k < kMmaDepth; ++k) a.set(k, a_codes.at(row, k));
    }
    // Register 4j + 2i + e of thread t of a quad: row 8i + …, column 8j + 2t + e.
    const auto element = [&](int column) -> float& {
      const Thread& thread = threads[row / 16 * 32 + row % 8 * 4 + column % 8 / 2];
      return thread.products[index].d[column / 8 * 4 + row % 16 / 8 * 2 + column % 2];
    };
    if (product.accumulate) {
      for (int column = 0; column < product.n; ++column) d[static_cast<size_t>(column)] = element(column);
    }
    b.multiply(a, 0, kMmaDepth, !product.accumulate, Accumulator::kHardware13, d);
    for (int column = 0; column < product.n; ++column) element(column) = d[static_cast<size_t>(column)];
  }
}

}  // namespace

void wgmma_issue(Product product) {
  Thread& thread = running();
  product.group = thread.product_group;
  thread.products.push_back(product);
}

void wgmma_commit() {
  ++running().product_group;
}

void wgmma_wait(int pending) {
  Thread& thread = running();
  Cta& cta = *thread.cta;
  const int warpgroup = thread.number / static_cast<int>(kThreads);
  Thread* const threads = cta.threads.data() + warpgroup * static_cast<int>(kThreads);
  expect(static_cast<size_t>(warpgroup + 1) * kThreads <= cta.threads.size(), "WGMMA: expected a whole warpgroup");
  Meeting& meeting = cta.warpgroups[warpgroup];
  if (!arrive(meeting, "wgmma.wait_group", kThreads)) {
    wait_in(meeting.waiting, {.what = "wgmma.wait_group"});
    return;
  }
  size_t finished = 0;
  const std::vector<Product>& products = thread.products;
  while (finished < products.size() && products[finished].group < thread.product_group - pending) {
    multiply(cta, threads, finished++);
  }
  for (size_t t = 0; t < kThreads; ++t) {
    auto& list = threads[t].products;
    list.erase(list.begin(), list.begin() + static_cast<int64_t>(finished));
  }
}

}  // namespace quaver::simt
