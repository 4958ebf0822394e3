#!/usr/bin/env bash
# Format, static analysis and house rules. Everything that can be checked without running a test.
# Usage: scripts/lint.sh [--fix]   (after scripts/setup.sh and a configured build/cpu)
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${QUAVER_TOOLS:-.venv/bin}

mapfile -t cxx < <(git ls-files --cached --others --exclude-standard -- '*.h' '*.cuh' '*.cpp' '*.cu')
if [[ ${1:-} == --fix ]]; then
  "$bin/clang-format" -i "${cxx[@]}"
  "$bin/ruff" format .
  "$bin/ruff" check --fix .
  exit
fi

echo "== clang-format"
"$bin/clang-format" --dry-run -Werror "${cxx[@]}"
echo "== ruff"
"$bin/ruff" format --check .
"$bin/ruff" check .
echo "== house rules"
python3 scripts/check_tree.py
echo "== documents show what the result files say"
python3 bench/render_tables.py --check
echo "== clang-tidy"
mkdir -p build/lint && cp "$(g++ -print-file-name=include/omp.h)" build/lint/  # clang-tidy's package has none
# What the CPU build compiles into the library; sources of CUDA builds need headers that are not here.
mapfile -t sources < <(git ls-files --cached --others --exclude-standard -- 'src/*.cpp' | while read -r source; do
  folder=$(cut -d/ -f1-2 <<< "$source")
  ! grep -q "$folder/CMakeFiles/[a-z_]*\.dir/${source#"$folder"/}\.o" build/cpu/compile_commands.json || echo "$source"
done)
printf '%s\n' "${sources[@]}" | xargs -P "$(nproc)" -n 4 "$bin/clang-tidy" -p build/cpu --quiet --extra-arg=-isystem"$PWD/build/lint" 2> >(grep -vE 'warnings? generated|Processing file|^$' >&2)
