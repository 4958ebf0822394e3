#include "simt/launch.h"

#include <algorithm>
#include <barrier>
#include <thread>

#include "simt/cta.h"

namespace quaver::simt {
namespace {

uint64_t order_seed = 0;

/// CTAs that are resident together in a random order, if clusters do not need more. In the plain order a CTA ends
/// before the next one begins: that costs no change of the OS thread.
constexpr size_t kResidentCtas = 4;

void check_shape(const LaunchShape& shape) {
  const auto& [grid, block, shared_bytes, cluster] = shape;
  const unsigned threads = block.x * block.y * block.z;
  check_as(ErrorKind::kCuda, threads > 0 && threads <= 1024, "threads of a CTA ", threads, ": expected 1 ... 1024");
  check_as(ErrorKind::kCuda, shared_bytes <= kMaxDynamicBytes, "dynamic shared memory ", shared_bytes,
           ": expected at most ", kMaxDynamicBytes, " bytes");
  check_as(ErrorKind::kCuda,
           grid.x > 0 && grid.x <= INT32_MAX && grid.y > 0 && grid.y <= 65535 && grid.z > 0 && grid.z <= 65535, "grid ",
           grid.x, " x ", grid.y, " x ", grid.z, ": expected 1 ... 2^31 - 1, 65535, 65535 CTAs");
  check_as(ErrorKind::kCuda, cluster > 0 && grid.x % static_cast<unsigned>(cluster) == 0, "grid ", grid.x,
           ": expected whole clusters of ", cluster);
}

/// The CTAs of a launch, some at a time, on the same few OS threads.
class Launch {
 public:
  Launch(const LaunchShape& shape, const std::function<void()>& thread, Changes* hidden)
      : shape_(shape), thread_(thread), hidden_(hidden), random_(order_seed) {
    check_shape(shape);
    const auto cluster = static_cast<unsigned>(shape.cluster);
    for (unsigned z = 0; z < shape.grid.z; ++z) {
      for (unsigned y = 0; y < shape.grid.y; ++y) {
        for (unsigned x = 0; x < shape.grid.x; x += cluster) clusters_.push_back({x, y, z});
      }
    }
    if (order_seed == 0) return;
    std::shuffle(clusters_.begin(), clusters_.end(), random_);
    clusters_together_ = std::max<size_t>(1, kResidentCtas / cluster);
  }

  void run() {
    const size_t num_threads = clusters_together_ * static_cast<size_t>(shape_.cluster);
    const auto advance = [this]() noexcept { next_wave(); };
    std::barrier between(static_cast<std::ptrdiff_t>(num_threads), advance);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < num_threads; ++i) {
      threads.emplace_back([&, i] {
        for (between.arrive_and_wait(); wave_; between.arrive_and_wait()) {
          if (i < wave_->num_ctas()) wave_->run_cta(i);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void next_wave() {
    if (wave_) error_ = wave_->error();
    wave_.reset();
    if (error_ || next_ == clusters_.size()) return;
    std::vector<uint3> blocks;
    const size_t end = std::min(next_ + clusters_together_, clusters_.size());
    for (; next_ < end; ++next_) {
      const uint3 first = clusters_[next_];
      for (int rank = 0; rank < shape_.cluster; ++rank) {
        blocks.push_back({first.x + static_cast<unsigned>(rank), first.y, first.z});
      }
    }
    wave_ = std::make_unique<Wave>(shape_, thread_, std::move(blocks), order_seed == 0 ? 0 : random_() | 1U, hidden_);
  }

  const LaunchShape& shape_;
  const std::function<void()>& thread_;
  Changes* hidden_;
  std::mt19937_64 random_;
  std::vector<uint3> clusters_;  ///< their first CTAs
  size_t clusters_together_ = 1;
  size_t next_ = 0;
  std::unique_ptr<Wave> wave_;
  std::exception_ptr error_;
};

}  // namespace

RandomOrder::RandomOrder(uint64_t seed) {
  order_seed = seed;
}
RandomOrder::~RandomOrder() {
  order_seed = 0;
}

void run_launch(const LaunchShape& shape, const std::function<void()>& thread, Changes* hidden) {
  Launch(shape, thread, hidden).run();
}

}  // namespace quaver::simt
