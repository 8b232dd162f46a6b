#!/usr/bin/env bash
# The train step on this machine's GPU at four shapes, beside the programs that people have otherwise:
#
#     benchmarks/gpu.sh [FOLDER]
#
# FOLDER (default gpu_results) receives a JSON file a program and shape, what each said, and gpu.md, the
# page. Environments of the peers are made there once; measuring then takes about ten minutes, a
# program that needs more than two minutes at a shape is left out and named. Called again it measures
# what is missing. PROGRAMS='ours tuned' measures these alone.
set -euo pipefail
folder=$(realpath -m "${1:-gpu_results}")
# shellcheck source=launch/venv.sh
. "$(dirname "$0")/../launch/venv.sh"
programs=${PROGRAMS:-ours stock compiled tuned flax keras}
shapes=${SHAPES:-base:128:256:20:40 large:128:128:20:30 base:512:64:80:30 large:512:32:80:30}
mkdir -p "$folder"

environment() { # NAME PACKAGES...: makes an environment where it is missing
  local name=$1
  shift
  [ -e "$folder/$name/ready" ] && return
  echo "installing $* into $folder/$name"
  python -m venv "$folder/$name"
  "$folder/$name/bin/pip" install --quiet --disable-pip-version-check "$@"
  touch "$folder/$name/ready"
}
case " $programs " in *' stock '* | *' compiled '* | *' tuned '*)
  environment torch torch==2.13.0 transformers==5.23.0 numpy ;;
esac
case " $programs " in *' flax '*)
  environment flax 'transformers==4.57.*' 'jax[cuda12]==0.6.2' 'flax==0.10.*' optax ;;
esac
case " $programs " in *' keras '*)
  environment keras keras-hub==0.32.0 'jax[cuda12]' tensorflow-cpu ;;
esac

for shape in $shapes; do
  IFS=: read -r model seq batch predictions steps <<< "$shape"
  case $model in
    tiny) sizes='--layers=2 --hidden=128' ;;
    base) sizes='--layers=12 --hidden=768' ;;
    large) sizes='--layers=24 --hidden=1024' ;;
  esac
  common="--batch_size=$batch --seq=$seq --predictions=$predictions --steps=$steps --dtype=bfloat16"
  for program in $programs; do
    name=$folder/$model-$seq-$batch-$program
    [ -s "$name.json" ] && continue
    case $program in
      ours) command="python -m bert_jax.tools.bench --model=$model --repeats=3 --json=$name.part" ;;
      flax) command="$folder/flax/bin/python benchmarks/huggingface_flax.py $sizes" ;;
      keras) command="$folder/keras/bin/python benchmarks/kerashub_pretrain.py $sizes" ;;
      *) command="$folder/torch/bin/python benchmarks/huggingface_pretrain.py $sizes --variant=$program" ;;
    esac
    echo "$(date +%T) $model, $batch rows of $seq: $program"
    # shellcheck disable=SC2086
    if timeout 120 $command $common --warmup=5 > "$name.txt" 2>&1; then
      [ -e "$name.part" ] || tail -n 1 "$name.txt" > "$name.part"
      mv "$name.part" "$name.json"
    else
      echo "  left out (status $?): $name.txt says why"
    fi
  done
done
python benchmarks/gpu_page.py "$folder" > "$folder/gpu.md"
echo "$folder/gpu.md"
