#!/usr/bin/env bash
# Puts the OpenAI client and lm-eval, which the server's tests call it with, into .venv once.
# Usage: scripts/clients.sh   (after scripts/setup.sh)
set -euo pipefail
cd "$(dirname "$0")/.."
stamp=.venv/clients.stamp
cmp -s scripts/requirements-clients.txt "$stamp" && exit
echo "installing the clients of the server's tests"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -r scripts/requirements-clients.txt
cp scripts/requirements-clients.txt "$stamp"
