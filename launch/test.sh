#!/usr/bin/env bash
# Linter, type checker and all tests. Arguments go to pytest, such as tests/data or -k masking.
set -euo pipefail
# shellcheck source=launch/venv.sh
. "$(dirname "$0")/venv.sh"
ruff check bert_jax configs tests benchmarks
mypy
# Two workers, a file each: whole runs are mostly start-up, which one core does. In the order of
# the folders, because files with few tests, which would come last, are the whole runs.
exec python -m pytest -n 2 --dist loadfile --no-loadscope-reorder "$@"
