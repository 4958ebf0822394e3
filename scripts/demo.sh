#!/usr/bin/env bash
# Gemma 3 270M answers two prompts with an FP8 and with a BF16 cache. Sets up everything on the first run.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ -d models/gemma-3-270m ]] || echo "first run: builds Quaver and fetches the model, a few minutes"
scripts/build.sh quaver_python
scripts/model.sh
exec .venv/bin/python -m quaver.demo models/gemma-3-270m
