#!/usr/bin/env bash
# Runs linter, type checker and all tests. Arguments, such as tests/data, go to pytest.
set -euo pipefail
# shellcheck source=launch/venv.sh
. "$(dirname "$0")/venv.sh"
ruff check bert_jax configs tests benchmarks
mypy
# Two workers, each with one file at a time: whole runs are mostly start-up, which uses one core.
# Files stay in folder order: otherwise those with few tests, the whole runs, would come last.
exec python -m pytest -n 2 --dist loadfile --no-loadscope-reorder "$@"
