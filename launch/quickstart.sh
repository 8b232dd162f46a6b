#!/usr/bin/env bash
# Pre-trains a tiny BERT on the documentation that comes with every Python, then lets it fill gaps.
# It takes some minutes on two CPU cores after installation. Arguments, such as
# --config.train.steps=500 or --workdir=DIR, go to bert_jax.main.
set -euo pipefail
begun=$SECONDS
# shellcheck source=launch/venv.sh
. "$(dirname "$0")/venv.sh"
installed=$SECONDS
run=runs/quickstart
for argument in "$@"; do
  case $argument in --workdir=*) run=${argument#*=} ;; esac
done
python -m bert_jax.main --config=configs/quickstart.py --workdir="$run" "$@"
trained=$SECONDS
echo
echo "What it puts into gaps:"
python -m bert_jax.predict fill-mask --model="$run" --top-k=3 \
  "This function returns a [MASK] of strings." \
  "Open the [MASK] and read its contents." \
  "If the key is not in the dictionary, a KeyError is [MASK]." \
  "The default value of this argument is [MASK]." \
  "Returns True if all elements of the array are [MASK] to zero." |
  python -c '
import json, sys
for line in sys.stdin:
    result = json.loads(line)
    words = ", ".join("{token} ({probability:.2f})".format(**one) for one in result["predictions"])
    print("  " + result["text"] + "  " + words)'
minutes() { printf '%d min %02d s' $(($1 / 60)) $(($1 % 60)); }
cat << END

installing took $(minutes $((installed - begun))), pre-training $(minutes $((trained - installed)))
curves: $run/curves.png

Next:
  . .venv/bin/activate
  python -m bert_jax.predict fill-mask --model=$run "Your own text with a [MASK]."
  python -m bert_jax.tools.report $run --output=report.html
  python -m bert_jax.main --config=configs/classification.py --config.init_checkpoint=$run \\
      --config.data.source=YOUR.csv --workdir=runs/mine
END
