#!/usr/bin/env bash
# Writes images/locks/NAME.txt: every package of each image's extra, with its version and the hashes of its files.
#   UV=.venv/bin/uv bash images/lock.sh
# engine-cpu wants torch's CPU build, which the package index does not have: TORCH_WHEELS is a folder or page with it.
set -euo pipefail
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# torch's CUDA build wants a Triton of its own.
grep -v '^triton' constraints-dev.txt >"$scratch/cuda"

lock() {
  local name=$1 constraints=$2
  shift 2
  "${UV:-uv}" pip compile -q pyproject.toml -c "$constraints" --generate-hashes --python-version 3.11 \
    --python-platform x86_64-manylinux_2_31 --no-emit-index-url --no-emit-find-links --no-header --no-annotate \
    "$@" -o "images/locks/$name.txt" >/dev/null
  echo "images/locks/$name.txt"
}

lock operator constraints-dev.txt --extra operator
lock gateway constraints-dev.txt --extra gateway
lock engine-cpu constraints-dev.txt --extra engine --extra otel --find-links "${TORCH_WHEELS:?a folder or page with the CPU build of torch}"
lock engine-cuda "$scratch/cuda" --extra engine --extra otel --extra cuda
