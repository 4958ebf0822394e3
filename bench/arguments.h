// The command lines of the measuring programs.
#pragma once

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/check.h"

namespace quaver::bench {

/// Throws Error(kInvalidArgument) naming the argument for what is no such integer, or one below `least`.
template <class Integer>
Integer integer_argument(std::string_view name, std::string_view text, Integer least) {
  Integer value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc{} && end == text.data() + text.size() && value >= least, name, " ", text,
        ": expected an integer from ", least, " on");
  return value;
}

/// Integers with commas between them, the same way.
inline std::vector<int64_t> integer_arguments(std::string_view name, const std::string& text, int64_t least) {
  std::vector<int64_t> values;
  std::istringstream list(text);
  for (std::string value; std::getline(list, value, ',');) values.push_back(integer_argument(name, value, least));
  check(!values.empty(), name, " ", text, ": expected integers with commas between them");
  return values;
}

/// What every program that measures a GPU is told.
struct RunOptions {
  std::string out;
  std::string commit = "unknown";
  std::string driver = "unknown";
};

/// Reads pairs of "--option value" into `options`; those of the program itself go to `take(option, value)`, which
/// returns whether it has the option. Throws Error(kInvalidArgument) naming an unknown one.
template <class Take>
void read_options(int argc, char** argv, RunOptions& options, Take take) {
  for (int i = 1; i < argc; i += 2) {
    const std::string option = argv[i];
    check(i + 1 < argc, "option ", option, ": expected a value");
    const std::string value = argv[i + 1];
    if (option == "--out") {
      options.out = value;
    } else if (option == "--commit") {
      options.commit = value;
    } else if (option == "--driver") {
      options.driver = value;
    } else {
      check(take(option, value), "option ", option, ": expected one that this program has");
    }
  }
}

/// Throws Error(kInvalidArgument) naming the file where its folder does not exist: told before minutes of measuring.
inline void check_folder_of(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  check(std::filesystem::is_directory(folder), "output ", path, ": expected a folder ", folder.string());
}

/// Throws Error(kInvalidArgument) naming the file where it cannot be written whole.
inline void write_file(const std::string& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  check(file.good(), "output ", path, ": expected a file that can be written");
}

/// main() of such a program: read_options(), then what `run(options)` returns as JSON to `--out`. What is thrown ends
/// it with status 1 and one line.
template <class Options, class Take, class Run>
int write_report(std::string_view program, int argc, char** argv, Options options, Take take, Run run) {
  try {
    read_options(argc, argv, options,
                 [&](const std::string& option, const std::string& value) { return take(options, option, value); });
    check_folder_of(options.out);
    write_file(options.out, run(options).dump(2) + "\n");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%.*s: %s\n", static_cast<int>(program.size()), program.data(), error.what());
    return 1;
  }
}

}  // namespace quaver::bench
