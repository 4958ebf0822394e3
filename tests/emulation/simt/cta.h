// State of an emulated CTA and of the CTAs that are resident together.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <unordered_map>
#include <vector>

#include "simt/early_start.h"
#include "simt/launch.h"
#include "simt/shared_memory.h"
#include "simt/thread.h"

namespace quaver::simt {

class Wave;

/// Threads that meet: those of a warp's mask, a warpgroup, a named barrier, a cluster.
struct Meeting {
  const char* what = nullptr;
  int expected = 0;
  int arrived = 0;
  uint32_t generation = 0;
  std::vector<Thread*> waiting{};
};

struct WarpMeeting {
  Meeting meeting{};
  uint32_t arrived = 0;              ///< lanes
  std::byte values[2][32][16] = {};  ///< of even and odd generations: the last one is still being read
};

struct Mbarrier {
  int count = 0;
  int pending = 0;    ///< arrivals that the phase still wants
  int64_t bytes = 0;  ///< that it still expects
  uint32_t phase = 0;
  std::vector<Thread*> waiting{};
};

/// A bulk copy or a remote store on its way.
struct Copy {
  Cta* to = nullptr;
  uint8_t* destination = nullptr;
  const void* source = nullptr;  ///< null: `value`
  float4 value{};
  int bytes = 0;
  uint32_t barrier = 0;  ///< in `to`
};

struct Cta {
  Wave* wave = nullptr;
  uint3 block{};
  int rank = 0;            ///< in its cluster
  Cta* cluster = nullptr;  ///< CTA 0 of it; the others follow
  SharedMemory memory{};
  std::vector<Thread> threads{};
  std::deque<Thread*> ready{};
  std::vector<Thread*> polling{};
  int running_threads = 0;
  std::map<std::pair<int, uint32_t>, WarpMeeting> warp_meetings{};  ///< by warp and mask
  std::map<int, Meeting> warpgroups{};
  std::map<int, Meeting> named_barriers{};
  int sync_sums[2] = {};
  std::unordered_map<uint32_t, Mbarrier> mbarriers{};
  Meeting cluster_barrier{};  ///< of CTA 0 of a cluster

  [[nodiscard]] Mbarrier& mbarrier(uint32_t address);
  void complete_if_due(Mbarrier& barrier);
};

/// CTAs that are resident together. Each has an OS thread (for its thread-local variables), but one runs at a time.
class Wave {
 public:
  Wave(const LaunchShape& shape, const std::function<void()>& thread, std::vector<uint3> blocks, uint64_t seed,
       Changes* hidden);
  Wave(const Wave&) = delete;
  Wave& operator=(const Wave&) = delete;
  ~Wave();

  /// CTA `index`, on an OS thread of its own; returns at the end of the wave.
  void run_cta(size_t index);
  [[nodiscard]] size_t num_ctas() const { return ctas_.size(); }
  /// What a thread threw.
  [[nodiscard]] std::exception_ptr error() const { return error_; }

  void fail(std::exception_ptr error);
  void add_copy(Copy copy) { copies_.push_back(copy); }
  [[nodiscard]] const LaunchShape& shape() const { return shape_; }
  [[nodiscard]] const std::function<void()>& thread() const { return thread_; }
  void progress() { idle_polls_ = 0; }
  /// griddepcontrol.wait: of all threads that come to it, when none can do anything else.
  void wait_for_launches_in_front();

 private:
  void start_threads(Cta& cta);
  [[nodiscard]] Thread* pick(Cta& cta);
  [[nodiscard]] int next_cta(size_t current);
  void land(size_t index);
  void check_end() const;
  [[nodiscard]] std::string deadlock();

  LaunchShape shape_;
  const std::function<void()>& thread_;
  std::vector<Cta> ctas_;
  std::vector<Copy> copies_;
  int idle_polls_ = 0;
  Changes* hidden_;  ///< none is hidden any more once threads have gone past griddepcontrol.wait
  std::vector<Thread*> dependents_;
  bool random_;
  std::mt19937_64 random_bits_;
  std::exception_ptr error_;

  std::mutex mutex_;
  std::condition_variable turn_changed_;
  int turn_ = 0;  ///< the CTA that runs; -1: end
};

/// Suspends the running thread until it is woken.
void wait_in(std::vector<Thread*>& queue, Waiting for_what);
void wake(std::vector<Thread*>& queue);

/// Arrives; true for the last. `queue` of the meeting is woken then.
bool arrive(Meeting& meeting, const char* what, int expected);

/// "dynamic + 0x120" or "static + 0x8".
[[nodiscard]] std::string place(uint32_t address);

}  // namespace quaver::simt
