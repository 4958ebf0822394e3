#!/usr/bin/env bash
# find_package(quaver) works after `cmake --install`, and the wheel installs and runs in an empty environment.
# Usage: scripts/test_install.sh   (after scripts/setup.sh and a build of build/cpu)
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "== find_package(quaver)"
cmake --install build/cpu --component development --prefix "$work/prefix" > /dev/null
cmake -S tests/install -B "$work/consumer" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" > /dev/null
cmake --build "$work/consumer" > /dev/null
"$work/consumer/consumer"

echo "== wheel"
# The wheel compiles the sources of build/cpu once more, with the same flags: ccache has the objects.
export CMAKE_CXX_COMPILER_LAUNCHER=ccache
.venv/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work/wheels" .
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet "$work"/wheels/quaver-*.whl
"$work/venv/bin/quaver" --version
"$work/venv/bin/quaver" explain --arch 90 --head-dim 256 --kv-heads 16 --q-heads 32
echo "install tests passed"
