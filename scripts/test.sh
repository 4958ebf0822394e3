#!/usr/bin/env bash
# All tests that need no GPU: ctest, then pytest. Sets up everything first. Usage: scripts/test.sh [pytest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/build.sh
scripts/model.sh
scripts/clients.sh
ctest --preset cpu -j "$(nproc)"
.venv/bin/python -m pytest "$@"
