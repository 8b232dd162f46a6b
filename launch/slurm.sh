#!/usr/bin/env bash
# Nodes with GPUs under SLURM, from a checkout on a disk that all nodes mount.
#
#     launch/slurm.sh install                     makes .venv with jax for CUDA
#     launch/slurm.sh run    NAME --nodes=N --gpus=8 [OPTION OF SBATCH...] -- FLAG...
#                                                 python -m bert_jax.main FLAG... on every node,
#                                                 queued again after a preemption or the time limit
#                                                 until it is done
#     launch/slurm.sh follow NAME                 the run's log, slurm-NAME.log
#     launch/slurm.sh status NAME
#     launch/slurm.sh stop   NAME                 ends the run by SIGTERM, on which it saves; it is
#                                                 not queued again (slurm-NAME.stopped says so)
#     launch/slurm.sh delete NAME                 cancels the run at once
#
# --gpus counts the GPUs of a node; --partition=..., --time=..., --account=... and the like are
# passed to sbatch unchanged. --tool=sweep runs bert_jax.tools.sweep instead; --tool=prepare, which
# needs no --gpus, bert_jax.tools.prepare: the nodes divide the text, and when all are done, the first
# makes the store. --dry-run, before the --, prints the commands without running them. One task per
# node drives all its GPUs. Ten minutes before the time limit the run is told to save. Exit status
# 143 (it saved) queues it again; 0 (done), 2 (bad input), 3 (it diverged) and anything else (a fault)
# end it.

#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@600
set -euo pipefail

# Ends the job with a status, by which it may be queued again.
end() {
  echo "$(date '+%F %T') ended with status $1"
  [ "$1" != 143 ] || [ -e "$stopped" ] || scontrol requeue "$SLURM_JOB_ID"
  exit "$1"
}

if [ "${1:-}" = job ]; then # run by sbatch, in the folder from which sbatch was called
  shift
  export BERT_JAX_PLATFORM=cuda
  stopped=slurm-$SLURM_JOB_NAME.stopped
  [ ! -e "$stopped" ] || { echo "stopped while it was queued" && exit 143; }
  # shellcheck source=launch/venv.sh
  . launch/venv.sh
  status=0 module=bert_jax.main
  case ${1:-} in --tool=*) module=bert_jax.tools.${1#*=} && shift ;; esac
  if [ "$module" = bert_jax.tools.prepare ]; then
    # shellcheck disable=SC2016
    srun --kill-on-bad-exit=0 bash -c '
      exec python -m "$1" "--share=$SLURM_PROCID/$SLURM_NTASKS" "${@:2}"' bash "$module" "$@" || status=$?
    [ ! -e "$stopped" ] || end 143
    # By srun, because the signals of --signal and of scancel reach its steps only.
    [ "$status" != 0 ] || srun --nodes=1 --ntasks=1 python -m "$module" --finish "$@" || status=$?
    end "$status"
  fi
  # Under SLURM jax uses one GPU per task unless it is given a list. srun must not kill the other
  # hosts when one fails: they end by themselves, with its status.
  # shellcheck disable=SC2016
  srun --kill-on-bad-exit=0 bash -c '
    export JAX_LOCAL_DEVICE_IDS=$(seq -s, 0 $((SLURM_GPUS_ON_NODE - 1)))
    exec python -m "$@"' bash "$module" "$@" || status=$?
  end "$status"
fi

cd "$(dirname "$0")/.."
# shellcheck disable=SC2034  # for common.sh
root=$PWD
# shellcheck source=launch/common.sh
. launch/common.sh
verb=${1:-}
name=${2:-}
case $verb in
  install)
    case " ${*:2} " in *' --dry-run '*) dry_run=1 ;; esac
    run env BERT_JAX_PLATFORM=cuda bash launch/venv.sh
    exit
    ;;
  run | follow | status | stop | delete) ;;
  --help | -h) usage && exit 0 ;;
  *) usage >&2 && exit 2 ;;
esac
case $name in -* | '') fail "$verb: the name is missing, see --help" ;; esac
shift 2
nodes='' gpus='' dry_run='' tool=''
options=("--job-name=$name" "--output=slurm-$name.log")
while [ $# -gt 0 ]; do
  case $1 in
    --nodes=*) nodes=${1#*=} ;;
    --gpus=*) gpus=${1#*=} ;;
    --dry-run) dry_run=1 ;;
    --tool=*) tool=${1#*=} ;;
    --) shift && break ;;
    --config* | --workdir*) fail "$1 is a flag of the run: flags of the run come after --" ;;
    *) options+=("$1") ;;
  esac
  shift
done

case $verb in
  run)
    [ -n "$nodes" ] || fail "--nodes is missing, such as --nodes=2"
    [ -n "$gpus" ] || [ "$tool" = prepare ] ||
      fail "--gpus is missing: how many a node has, such as --gpus=8"
    [[ $nodes =~ ^[1-9][0-9]*$ ]] || fail "--nodes=$nodes: give a number from 1"
    [[ $gpus =~ ^[1-9][0-9]*$ ]] || [[ $tool:$gpus =~ ^prepare:0?$ ]] || fail "--gpus=$gpus: give the number of GPUs of a node"
    check_tool "$tool"
    shared_disk=1 check_workdir "$@"
    run rm -f "slurm-$name.stopped"
    ((${gpus:-0} == 0)) || options=("--gpus-per-node=$gpus" "${options[@]}")
    run sbatch "--nodes=$nodes" "${options[@]}" launch/slurm.sh job \
      ${tool:+"--tool=$tool"} "$@"
    ;;
  follow) run tail -n 100 -F "slurm-$name.log" ;;
  status) run squeue "--name=$name" ;;
  stop)
    run touch "slurm-$name.stopped" # for a queued job too, which gets no signal
    run scancel "--name=$name" --signal=TERM
    ;;
  delete) run scancel "--name=$name" ;;
esac
