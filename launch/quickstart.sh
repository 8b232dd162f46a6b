#!/usr/bin/env bash
# Pre-trains a tiny BERT on the documentation that comes with every Python: about five minutes on
# two CPU cores after installation. Arguments go to bert_jax.main, such as
# --config.train.steps=500 or --workdir=DIR.
set -euo pipefail
# shellcheck source=launch/venv.sh
. "$(dirname "$0")/venv.sh"
exec python -m bert_jax.main --config=configs/tiny_pretrain.py "$@"
