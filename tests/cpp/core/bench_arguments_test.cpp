// bench/arguments.h: what the measuring programs are told, and where their reports go.
#include "arguments.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "testing/expect_error.h"
#include "testing/temp_dir.h"

namespace quaver::bench {
namespace {

using quaver::testing::expect_error;
using quaver::testing::TempDir;

struct Options : RunOptions {
  int64_t rows = 1;
};

struct Report {
  int64_t rows = 0;
  [[nodiscard]] std::string dump(int /*indent*/) const { return "{\"rows\": " + std::to_string(rows) + "}"; }
};

/// Exit status of a program with two options, and what it says on stderr.
std::pair<int, std::string> run(std::vector<std::string> arguments) {
  std::vector<char*> argv{arguments.emplace(arguments.begin(), "program")->data()};
  for (size_t i = 1; i < arguments.size(); ++i) argv.push_back(arguments[i].data());
  const auto take = [](Options& options, const std::string& option, const std::string& value) {
    if (option != "--rows") return false;
    options.rows = integer_argument<int64_t>(option, value, 1);
    return true;
  };
  ::testing::internal::CaptureStderr();
  const int status = write_report("program", static_cast<int>(argv.size()), argv.data(), Options{}, take,
                                  [](const Options& options) { return Report{options.rows}; });
  return {status, ::testing::internal::GetCapturedStderr()};
}

TEST(BenchArguments, ReportGoesToItsFileWhole) {
  const TempDir folder;
  const std::string out = folder.path() / "report.json";
  folder.write("report.json", "what was there before, and is longer");
  EXPECT_EQ(run({"--out", out, "--rows", "7"}), (std::pair{0, std::string{}}));
  std::ifstream file(out);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "{\"rows\": 7}\n");
}

TEST(BenchArguments, EveryBadInputIsOneLineThatNamesIt) {
  const TempDir folder;
  const std::string absent = folder.path() / "absent" / "report.json";
  const std::string out = folder.path() / "report.json";
  const auto expect_line = [](const std::vector<std::string>& arguments, const std::string& line) {
    EXPECT_EQ(run(arguments), (std::pair{1, "program: " + line + "\n"}));
  };
  expect_line({"--out", absent},
              "output " + absent + ": expected a folder " + std::filesystem::path(absent).parent_path().string());
  expect_line({"--out", folder.path()}, "output " + folder.path().string() + ": expected a file that can be written");
  expect_line({"--rows", "0", "--out", out}, "--rows 0: expected an integer from 1 on");
  expect_line({"--rows", "7x", "--out", out}, "--rows 7x: expected an integer from 1 on");
  expect_line({"--rows"}, "option --rows: expected a value");
  expect_line({"--columns", "7"}, "option --columns: expected one that this program has");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(BenchArguments, Lists) {
  EXPECT_EQ(integer_arguments("--tokens", "1,64,128", 1), (std::vector<int64_t>{1, 64, 128}));
  for (const char* const bad : {"", "1,,2", "1,0", "1;2"}) {
    expect_error([&] { (void)integer_arguments("--tokens", bad, 1); }, ErrorKind::kInvalidArgument, {"--tokens"});
  }
}

}  // namespace
}  // namespace quaver::bench
