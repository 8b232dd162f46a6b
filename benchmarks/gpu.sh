#!/usr/bin/env bash
# What this machine's GPU does, in about ten minutes, with the Python that is here; it installs nothing:
#
#     benchmarks/gpu.sh [FOLDER]
#
# One thing is measured after another, the most valuable first, each alone in its process, and printed
# at once: the train step at four shapes, with the thirty kernels that take longest; the same steps by
# Hugging Face's PyTorch (compiled, head only where masked) if torch and transformers are installed;
# vectors of sentences by both; runs from text to result, beside the losses of CPUs; the step with
# XLA's flags, one at a time. FOLDER (default gpu_results) receives a JSON file of each, what it said,
# and gpu.md, the page. After nine minutes nothing more is begun; called again, it measures what is
# missing. PYTHON=/path/to/python chooses the interpreter, and REHEARSE=1 tiny sizes, for a CPU.
# shellcheck disable=SC2086,SC2046 # lists of words are split
set -euo pipefail
folder=$(realpath -m "${1:-gpu_results}")
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
mkdir -p "$folder"

# MODEL:LENGTH:ROWS:PREDICTIONS:STEPS
first='base:512:64:80:30 base:128:256:20:40'
second='large:512:32:80:30 large:128:128:20:30'
vectors='--sentences=12000'
run_sizes=
# Flags of fusion and of LayerNorm are not tried: docs/log/speed.md has what they compile to.
flags='xla_gpu_enable_triton_gemm=false xla_gpu_enable_command_buffer= xla_gpu_enable_latency_hiding_scheduler=true'
if [ -n "${REHEARSE:-}" ]; then
  first='tiny:32:8:4:2'
  second='tiny:16:8:3:2'
  vectors='--sentences=50 --size=tiny --repeats=1'
  run_sizes='--config.phases=() --config.train.steps=10 --config.train.max_eval_examples=64'
fi
programs=ours
if "$python" -c 'import importlib.util as i; exit(not (i.find_spec("torch") and i.find_spec("transformers")))'; then
  programs='ours pytorch'
fi

measure() { # NAME COMMAND...: runs a command whose last line, perhaps behind "result ", or NAME.part, is JSON
  local name=$1
  shift
  [ -s "$folder/$name.json" ] && return
  if ((SECONDS > 9 * 60)); then
    echo "== $name: left out, nine minutes are over; call again"
    return
  fi
  echo "== $name, $(date +%T)"
  if ! timeout --kill-after=10 180 "$@" 2> "$folder/$name.err" | tee "$folder/$name.txt"; then
    echo "   stopped with an error: $folder/$name.err says why"
    [ -s "$folder/$name.part" ] || return 0 # measured, but the profile failed
  fi
  [ -s "$folder/$name.part" ] || tail -n 1 "$folder/$name.txt" | sed 's/^result //' > "$folder/$name.part"
  mv "$folder/$name.part" "$folder/$name.json"
  "$python" benchmarks/gpu_page.py "$folder" > "$folder/gpu.md"
}

steps() { # PROGRAM SHAPES...: the train step at each shape
  local program=$1 shape model seq batch layers hidden
  shift
  for shape; do
    IFS=: read -r model seq batch _ <<< "$shape"
    case $model in
      tiny) layers=2 hidden=128 ;;
      base) layers=12 hidden=768 ;;
      large) layers=24 hidden=1024 ;;
    esac
    case $program in
      ours) our_step "$model-$seq-$batch-ours" "$shape" ;;
      pytorch)
        measure "$model-$seq-$batch-pytorch" "$python" benchmarks/huggingface_pretrain.py \
          --layers="$layers" --hidden="$hidden" $(sizes "$shape") --dtype=bfloat16 --variant=tuned
        ;;
    esac
  done
}

our_step() { # NAME SHAPE
  measure "$1" "$python" -m bert_jax.tools.bench --model="${2%%:*}" $(sizes "$2") --dtype=bfloat16 \
    --repeats=3 --kernels=30 --json="$folder/$1.part"
}

sizes() { # SHAPE: the arguments that all programs take
  local seq batch predictions num_steps
  IFS=: read -r _ seq batch predictions num_steps <<< "$1"
  echo "--batch_size=$batch --seq=$seq --predictions=$predictions --steps=$num_steps --warmup=5"
}

run() { # RECIPE SEED ARGUMENTS...: pre-training to its end, and what its reference on CPUs says of it
  local recipe=$1 seed=$2
  local name=run-$recipe-$seed
  shift 2
  [ -s "$folder/$name.json" ] && return
  measure "$name" "$python" -m bert_jax.main --config.seed="$seed" --workdir="$folder/$name" "$@" $run_sizes
  [ -s "$folder/$name/metrics.jsonl" ] || return 0
  # Its exit status is 1 where another Python's documentation is another text.
  "$python" -m bert_jax.tools.report "$folder/$name" --against="$recipe" | tee "$folder/$name.against" || true
}

for program in $programs; do
  steps "$program" $first
done
for program in $programs; do
  measure "vectors-$program" "$python" benchmarks/vectors.py --program="$program" $vectors
done
steps ours $second
run quickstart 0 --config=configs/quickstart.py
run quickstart 1 --config=configs/quickstart.py
run synthetic 0 --config=configs/tiny_pretrain.py --config.task=synthetic
case $programs in *pytorch*) steps pytorch $second ;; esac
for flag in $flags; do
  XLA_FLAGS="${XLA_FLAGS:-} --$flag" our_step "flag-$flag" "${first##* }"
done
cat "$folder/gpu.md"
