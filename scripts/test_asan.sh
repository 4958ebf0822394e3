#!/usr/bin/env bash
# C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer. Usage: scripts/test_asan.sh [ctest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
# Leak checking needs ptrace rights that containers often lack, and the OpenMP runtime keeps its pool for ever.
export ASAN_OPTIONS=detect_leaks=${QUAVER_LEAKS:-0}:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1
cmake --preset asan > /dev/null
cmake --build --preset asan
ctest --preset asan -j "$(nproc)" "$@"
