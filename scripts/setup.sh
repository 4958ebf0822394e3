#!/usr/bin/env bash
# System packages (only missing ones, by apt) and the virtual environment .venv with pinned tools.
# Idempotent; takes a fraction of a second when nothing is to do. Usage: scripts/setup.sh
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=.venv/setup.stamp
inputs=(scripts/setup.sh scripts/requirements.txt)
if [[ -f $stamp ]] && cat "${inputs[@]}" | cmp -s - "$stamp"; then exit; fi

python_lacks() { ! python3 -c "$1" 2> /dev/null; }

python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  { echo "python3 $(python3 --version): expected 3.11 or later on PATH" >&2; exit 1; }
wanted=(g++ ccache cmake ninja-build libopenblas-openmp-dev nlohmann-json3-dev libgtest-dev)
if python_lacks 'import venv, ensurepip'; then wanted+=(python3-venv); fi
if python_lacks 'import pathlib, sysconfig; (pathlib.Path(sysconfig.get_path("include")) / "Python.h").stat()'; then
  wanted+=(python3-dev)
fi
scripts/apt.sh "${wanted[@]}"

echo "setting up the Python environment in .venv"
python3 -m venv --clear .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check -r scripts/requirements.txt

# The package runs from the source tree: python/ is on the path and the build puts the C++ module there.
.venv/bin/python - << 'EOF'
import pathlib
import sys
import sysconfig

root = pathlib.Path.cwd()
(pathlib.Path(sysconfig.get_path("purelib")) / "quaver.pth").write_text(f"{root / 'python'}\n")
script = root / ".venv" / "bin" / "quaver"
script.write_text(f"#!{sys.executable}\nimport sys\n\nfrom quaver.cli import main\n\nsys.exit(main())\n")
script.chmod(0o755)
EOF
cat "${inputs[@]}" > "$stamp"
