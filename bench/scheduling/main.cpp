// Host time of a decode step without a model: schedule() and update() for requests on the cache groups of Gemma 4 31B,
// back to back and with other work in between.
// usage: bench_scheduling [loads [commit]]       JSON on stdout, committed as bench/results/cpu/scheduling.json
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "arguments.h"
#include "testing/scheduling_load.h"

namespace {

using namespace quaver;

constexpr int kSteps = 64;
constexpr int kRounds = 4;  // with a load: contexts grow by 256 tokens meanwhile

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(": ") + 2);
  }
  return "unknown";
}

nlohmann::json run(int64_t num_loads) {
  struct Case {
    int64_t sequences;
    int64_t context;
  };
  nlohmann::json cases = nlohmann::json::array();
  testing::SchedulingTimes first;  // what the others have grown from
  for (const auto& [sequences, context] :
       {Case{128, 1024}, {128, 9216}, {256, 1024}, {512, 1024}, {1024, 1024}, {1024, 9216}}) {
    testing::SchedulingTimes times;
    int64_t batch_bytes = 0;
    for (int64_t i = 0; i < num_loads; ++i) {
      testing::SchedulingLoad load(sequences, context);
      times.measure(load, kSteps, kRounds);
      batch_bytes = load.batch_bytes();
    }
    if (cases.empty()) first = times;
    cases.push_back({{"sequences", sequences},
                     {"context", context},
                     {"step_us", times.step_s * 1e6},
                     {"cold_step_us", times.cold_step_s * 1e6},
                     {"batch_bytes", batch_bytes},
                     {"batch_copy_us", times.copy_s * 1e6},
                     {"step_per_copy", times.step_s / times.copy_s},
                     {"step_growth", times.step_s / first.step_s},
                     {"cold_step_growth", times.cold_step_s / first.cold_step_s},
                     {"batch_copy_growth", times.copy_s / first.copy_s}});
  }
  return {{"processor", processor()},
          {"cores", std::thread::hardware_concurrency()},
          {"cache_groups", to_string(testing::gemma4_31b_plan())},
          {"rounds", num_loads * kRounds},
          {"cases", cases}};
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int64_t num_loads = argc > 1 ? quaver::bench::integer_argument<int64_t>("loads", argv[1], 1) : 5;
    nlohmann::json report = run(num_loads);
    report["commit"] = argc > 2 ? argv[2] : "unknown";
    std::cout << report.dump(2) << '\n';
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "bench_scheduling: " << error.what() << '\n';
    return 1;
  }
}
