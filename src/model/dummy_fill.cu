#include "model/dummy_fill.cuh"

namespace quaver {
namespace {

template <class T>
void fill(const DummyFillArgs<T>& args, cudaStream_t stream) {
  check(args.count >= 0, "dummy values ", args.count, ": expected >= 0");
  if (args.count == 0) return;
  check(args.out != nullptr && args.table != nullptr, "dummy values: expected output and table");
  const int64_t draws = (args.count + kDummyDraw - 1) / kDummyDraw;
  const int64_t blocks = (draws + kDummyThreads - 1) / kDummyThreads;
  constexpr int64_t kMaxBlocks = 4096;
  const bool aligned = reinterpret_cast<uintptr_t>(args.out) % sizeof(DummyQuad<T>) == 0;
  const dim3 grid(static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks));
  launch(dummy_values<T>, grid, kDummyThreads, 0, stream, args, aligned);
}

}  // namespace

void dummy_fill(const DummyFillArgs<uint8_t>& args, cudaStream_t stream) {
  fill(args, stream);
}
void dummy_fill(const DummyFillArgs<Bf16>& args, cudaStream_t stream) {
  fill(args, stream);
}

}  // namespace quaver
