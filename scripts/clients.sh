#!/usr/bin/env bash
# What the server's tests call it with: headless Chromium by apt (26 s), the OpenAI client and lm-eval into .venv, once.
# Usage: scripts/clients.sh   (after scripts/setup.sh)
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v chromium-headless-shell chromium google-chrome > /dev/null; then scripts/apt.sh chromium-headless-shell; fi
stamp=.venv/clients.stamp
cmp -s scripts/requirements-clients.txt "$stamp" && exit
echo "installing the clients of the server's tests"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -r scripts/requirements-clients.txt
cp scripts/requirements-clients.txt "$stamp"
