// The scheduler. A thread runs until it waits; when all wait, one asynchronous copy lands, as late as can be; when
// none is left, nothing will ever happen any more.
#include <algorithm>
#include <sstream>
#include <utility>

#include "simt/cta.h"

namespace quaver::simt {
namespace {

constexpr int kMaxIdlePolls = 200;  // rounds in which threads polled and nothing changed
thread_local Thread* current = nullptr;

void run_thread() {
  Thread& thread = *current;
  entered(thread.fiber);
  Wave& wave = *thread.cta->wave;
  try {
    wave.thread()();
    expect(thread.products.empty(), "the thread has ended: expected that it waits for its WGMMAs before");
    expect(thread.boxes.empty(), "the thread has ended: expected that it waits for its tensor stores before");
  } catch (...) {
    wave.fail(std::current_exception());
  }
  thread.done = true;
  --thread.cta->running_threads;
  wave.progress();
  Cta& first = *thread.cta->cluster;
  --first.cluster_barrier.expected;  // the barrier of a cluster does not wait for threads that have ended
  if (first.cluster_barrier.arrived > 0 && first.cluster_barrier.arrived == first.cluster_barrier.expected) {
    --first.cluster_barrier.arrived;
    arrive(first.cluster_barrier, "barrier.cluster", first.cluster_barrier.expected);
  }
  suspend(thread.fiber, true);  // for the last time: resume() gives the stack back
}

}  // namespace

Thread& running() {
  return *current;
}

void fault_text(const std::string& text) {
  const Thread& thread = running();
  const uint3 block = thread.block();
  fail(ErrorKind::kCuda, "CTA (", block.x, ", ", block.y, ", ", block.z, ") thread ", thread.number, " (warp ",
       thread.warp(), " lane ", thread.lane(), "): ", text);
}

const uint3& Thread::block() const {
  return cta->block;
}
const dim3& Thread::block_dim() const {
  return cta->wave->shape().block;
}
const dim3& Thread::grid_dim() const {
  return cta->wave->shape().grid;
}

void wait_in(std::vector<Thread*>& queue, Waiting for_what) {
  Thread& thread = running();
  thread.waiting = for_what;
  queue.push_back(&thread);
  suspend(thread.fiber);
}

void wake(std::vector<Thread*>& queue) {
  for (Thread* thread : queue) {
    thread->waiting = {};
    thread->cta->ready.push_back(thread);
    thread->cta->wave->progress();
  }
  queue.clear();
}

void poll(const char* what) {
  wait_in(running().cta->polling, {.what = what});
}

Wave::Wave(const LaunchShape& shape, const std::function<void()>& thread, std::vector<uint3> blocks, uint64_t seed,
           Changes* hidden)
    : shape_(shape), thread_(thread), ctas_(blocks.size()), hidden_(hidden), random_(seed != 0), random_bits_(seed) {
  if (hidden_ != nullptr) hidden_->hide();
  const int num_threads = static_cast<int>(shape.block.x * shape.block.y * shape.block.z);
  for (size_t i = 0; i < ctas_.size(); ++i) {
    Cta& cta = ctas_[i];
    cta.wave = this;
    cta.block = blocks[i];
    cta.rank = static_cast<int>(i) % shape.cluster;
    cta.cluster = &ctas_[i - static_cast<size_t>(cta.rank)];
    cta.running_threads = num_threads;
    cta.threads.resize(static_cast<size_t>(num_threads));
    cta.cluster->cluster_barrier.expected += num_threads;
  }
}

Wave::~Wave() {
  if (hidden_ != nullptr && hidden_->hidden()) {
    try {
      hidden_->show();  // after an error, which says more
    } catch (const Error&) {
    }
  }
  for (Cta& cta : ctas_) {
    for (Thread& thread : cta.threads) {
      if (thread.fiber.stack != nullptr) give_back_stack(thread.fiber.stack, false);
    }
  }
}

void Wave::wait_for_launches_in_front() {
  if (hidden_ != nullptr && hidden_->hidden()) wait_in(dependents_, {.what = "griddepcontrol.wait"});
}

void Wave::start_threads(Cta& cta) {
  cta.memory = SharedMemory::poisoned(shape_.shared_bytes);
  const dim3 dims = shape_.block;
  for (size_t t = 0; t < cta.threads.size(); ++t) {
    Thread& thread = cta.threads[t];
    const auto number = static_cast<unsigned>(t);
    thread.thread = {number % dims.x, number / dims.x % dims.y, number / dims.x / dims.y};
    thread.number = static_cast<int>(t);
    thread.cta = &cta;
    cta.ready.push_back(&thread);
  }
}

void Wave::run_cta(size_t index) {
  Cta& cta = ctas_[index];
  const auto own = static_cast<int>(index);
  const auto pass = [&](int next) {
    turn_ = next;
    turn_changed_.notify_all();
  };
  std::unique_lock lock(mutex_);
  turn_changed_.wait(lock, [&] { return turn_ == own; });
  start_threads(cta);  // one CTA after the other, then the first one runs
  pass((own + 1) % static_cast<int>(ctas_.size()));
  while (true) {
    turn_changed_.wait(lock, [&] { return turn_ == own || turn_ == -1; });
    if (turn_ == -1) break;
    try {
      while (Thread* thread = error_ ? nullptr : pick(cta)) {
        current = thread;
        if (thread->fiber.stack == nullptr) prepare(thread->fiber, take_stack(), run_thread);
        resume(thread->fiber);
        if (thread->done) give_back_stack(std::exchange(thread->fiber.stack, nullptr), true);
      }
      pass(next_cta(index));
    } catch (...) {
      fail(std::current_exception());
      pass(-1);
    }
  }
  cta.memory.release();
}

Thread* Wave::pick(Cta& cta) {
  if (cta.ready.empty()) return nullptr;
  if (random_) {
    std::swap(cta.ready.front(), cta.ready[random_bits_() % cta.ready.size()]);
    if (!copies_.empty() && random_bits_() % 64 == 0) land(random_bits_() % copies_.size());
  }
  Thread* thread = cta.ready.front();
  cta.ready.pop_front();
  return thread;
}

/// The CTA that runs next; -1 at the end.
int Wave::next_cta(size_t current_cta) {
  const auto all = [&](auto holds) { return std::all_of(ctas_.begin(), ctas_.end(), holds); };
  while (!error_) {
    for (size_t step = 1; step <= ctas_.size(); ++step) {
      const size_t next = (current_cta + step) % ctas_.size();
      if (!ctas_[next].ready.empty()) return static_cast<int>(next);
    }
    if (!copies_.empty()) {
      land(random_ ? random_bits_() % copies_.size() : 0);
    } else if (hidden_ != nullptr && hidden_->hidden()) {
      hidden_->show();
      wake(dependents_);
    } else if (all([](const Cta& cta) { return cta.running_threads == 0; })) {
      check_end();
      return -1;
    } else {
      const int polls = idle_polls_ + 1;
      const bool none_polls = all([](const Cta& cta) { return cta.polling.empty(); });
      if (none_polls || polls > kMaxIdlePolls) quaver::fail(ErrorKind::kCuda, deadlock());
      for (Cta& cta : ctas_) wake(cta.polling);
      idle_polls_ = polls;
    }
  }
  return -1;
}

void Wave::land(size_t index) {
  const Copy copy = copies_[index];
  copies_.erase(copies_.begin() + static_cast<int64_t>(index));
  check_as(ErrorKind::kCuda, copy.to->running_threads > 0, "CTA ", copy.to->block.x,
           " has ended: expected that it waits for the copy of ", copy.bytes, " bytes that is on its way");
  std::memcpy(copy.destination, copy.source != nullptr ? copy.source : &copy.value, static_cast<size_t>(copy.bytes));
  Mbarrier& barrier = copy.to->mbarrier(copy.barrier);
  barrier.bytes -= copy.bytes;
  copy.to->complete_if_due(barrier);
  progress();
}

void Wave::check_end() const {
  for (const Cta& cta : ctas_) {
    for (const auto& [address, barrier] : cta.mbarriers) {
      check_as(ErrorKind::kCuda, barrier.bytes == 0, "mbarrier at ", place(address), " of CTA ", cta.block.x,
               " at the end of the kernel: expected no bytes due, found ", barrier.bytes);
    }
  }
}

void Wave::fail(std::exception_ptr error) {
  if (!error_) error_ = std::move(error);
}

/// One line for all threads of a warp that wait for the same.
std::string Wave::deadlock() {
  std::ostringstream text;
  text << "deadlock: no thread can go on";
  for (Cta& cta : ctas_) {
    const auto describe = [&](const Thread& thread) -> std::string {
      const Waiting& waiting = thread.waiting;
      if (thread.done) return "has ended";
      if (waiting.mbarrier == 0) return waiting.number == 0 ? waiting.what : concat(waiting.what, " ", waiting.number);
      const Mbarrier& barrier = cta.mbarrier(waiting.mbarrier);
      return concat(waiting.what, " at ", place(waiting.mbarrier), ", parity ", waiting.number, ": phase ",
                    barrier.phase, " wants ", barrier.pending, " of ", barrier.count, " arrivals and ", barrier.bytes,
                    " bytes");
    };
    for (size_t warp = 0; warp < cta.threads.size(); warp += 32) {
      std::map<std::string, std::vector<int>> lanes;
      for (size_t t = warp; t < std::min(warp + 32, cta.threads.size()); ++t) {
        const Thread& thread = cta.threads[t];
        lanes[describe(thread)].push_back(thread.lane());
      }
      for (const auto& [what, which] : lanes) {
        if (what == "has ended" && which.size() == 32) continue;
        text << "\n  CTA (" << cta.block.x << ", " << cta.block.y << ", " << cta.block.z << ") warp " << warp / 32
             << ", " << which.size() << " lanes from lane " << which.front() << ": " << what;
      }
    }
  }
  return text.str();
}

}  // namespace quaver::simt
