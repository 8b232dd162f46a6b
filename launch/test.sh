#!/usr/bin/env bash
# Runs linter, type checker and all tests. Arguments, such as tests/data, go to pytest.
set -euo pipefail
# shellcheck source=launch/venv.sh
. "$(dirname "$0")/venv.sh"
ruff check bert_jax configs tests benchmarks
mypy
# Workers (launch/venv.sh says how many), each with one file at a time: whole runs are mostly
# start-up, which uses one core.
# Files stay in folder order: otherwise those with few tests, the whole runs, would come last.
exec python -m pytest -n auto --dist loadfile --no-loadscope-reorder "$@"
