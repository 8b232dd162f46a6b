#!/usr/bin/env bash
# Cloud TPU slices with gcloud, from your own machine.
#
# They are requested from the Cloud TPU API, which Google no longer develops and which has no TPU7x:
# launch/instance_group.sh does the same with Compute Engine (v5p, v6e and TPU7x).
#
#     launch/tpu_vm.sh create   NAME --type=v5litepod-256 [--spot] [--slices=N]
#     launch/tpu_vm.sh install  NAME                 the last commit's files and .venv on every host
#     launch/tpu_vm.sh run      NAME -- FLAG...      python -m bert_jax.main FLAG... on every host;
#                                                    what runs there saves and stops first
#     launch/tpu_vm.sh follow   NAME                 the first host's log, until the run ends
#     launch/tpu_vm.sh status   NAME                 the status of slice and run
#     launch/tpu_vm.sh relaunch NAME --type=... -- FLAG...
#                                                    create, install and run, repeated after each
#                                                    preemption until the run is done
#     launch/tpu_vm.sh stop     NAME                 SIGTERM on every host: the run saves and ends,
#                                                    and a relaunch that watches it ends too
#     launch/tpu_vm.sh delete   NAME                 deletes the slice, which costs until then
#
# Options, before the --:
#     --zone=ZONE --project=PROJECT   default: gcloud's own settings
#     --type=TYPE                     as gcloud names them: v4-128, v5litepod-256, v5p-256, v6e-256
#     --runtime=VERSION               default: the TPU software version made for that type
#     --spot                          cheaper, and may be taken away at any time
#     --slices=N                      N slices of that type in one run
#     --valid-until=DURATION          how long to wait in the queue before giving up, such as 6h
#     --tool=sweep                    run python -m bert_jax.tools.sweep FLAG... instead
#     --tool=prepare                  prepare a text in place of a run: the hosts divide it, and the first
#                                     makes the store (machines without TPUs are cheaper: docs/pods.md)
#     --shared-disk                   the workdir is not a gs:// path, but all hosts mount it
#     --commit=COMMIT                 whose files the hosts get: the last one, or that which a relaunched
#                                     run began with, unless given
#     --delete                        relaunch deletes the slice when the run is done or given up
#     --dry-run                       print the commands without running them
#
# Slices are requested as queued resources: granted at once if there is capacity, otherwise in turn.
# TPU_CREATE_FLAGS and TPU_SSH_FLAGS are passed unchanged to gcloud, for example
# --service-account=NAME or --tunnel-through-iap. A killed run resumes from its last checkpoint.
# Exit status 0 means done, 2 bad input and 3 that the run diverged (relaunch stops); anything else is
# a fault. relaunch gives up at the fifth fault, counting anew after an hour without one. A slice
# whose first host cannot be reached for 15 minutes (UNREACHABLE_SECONDS) counts as a fault; it is
# deleted and requested again.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=launch/slice.sh
. "$root/launch/slice.sh"

zone='' project='' type='' runtime='' spot='' slices=1 valid_until='' shared_disk='' dry_run=''
delete_after='' tool='' asked_commit=''

read_verb "$@"
shift 2
while [ $# -gt 0 ]; do
  case $1 in
    --zone=*) zone=${1#*=} ;;
    --project=*) project=${1#*=} ;;
    --type=*) type=${1#*=} ;;
    --runtime=*) runtime=${1#*=} ;;
    --slices=*) slices=${1#*=} ;;
    --valid-until=*) valid_until=${1#*=} ;;
    --spot) spot=1 ;;
    --shared-disk) shared_disk=1 ;;
    --commit=*) asked_commit=${1#*=} ;;
    --tool=*) tool=${1#*=} ;;
    --delete) delete_after=1 ;;
    --dry-run) dry_run=1 ;;
    --help | -h) usage && exit 0 ;;
    --) shift && break ;;
    *) fail "$1 is not an option of tpu_vm.sh (options are written --NAME=VALUE, flags of the run" \
      "come after --); see --help" ;;
  esac
  shift
done
[[ $slices =~ ^[1-9][0-9]*$ ]] || fail "--slices=$slices: give a number from 1"
check_tool "$tool"

where=()
[ -z "$zone" ] || where+=("--zone=$zone")
[ -z "$project" ] || where+=("--project=$project")

queued() {
  local subcommand=$1
  shift
  run gcloud compute tpus queued-resources "$subcommand" "$@" "${where[@]+"${where[@]}"}" --quiet
}

# shellcheck disable=SC2086
ssh_to() {
  local hosts=all
  [ "$1" = all ] || hosts=0
  queued ssh "$name" "--node=$hosts" "--worker=$hosts" "--command=$2" ${TPU_SSH_FLAGS:-}
}

# shellcheck disable=SC2086
copy_to_hosts() {
  queued scp "$1" "$name:bert_jax.tar.gz" --node=all --worker=all ${TPU_SSH_FLAGS:-}
}

follow() {
  ssh_to first "$(on_host follow)"
}

describe() {
  queued describe "$name" '--format=value(state.state)'
}

# Prints the state of the queued resource: gcloud's (ACTIVE, SUSPENDED, ...), MISSING or UNKNOWN.
slice_state() {
  describe 2> /dev/null && return
  case $(describe 2>&1) in
    *NOT_FOUND*) echo MISSING ;;
    *) echo UNKNOWN ;; # no network, say
  esac
}

# Whether the first host is gone, even if the queued resource does not say so yet.
host_is_gone() {
  local node=$name state
  ((slices == 1)) || node=$name-0
  state=$(run gcloud compute tpus tpu-vm describe "$node" '--format=value(state)' \
    "${where[@]+"${where[@]}"}" --quiet 2> /dev/null) || return 1
  [[ $state == PREEMPTED || $state == TERMINATED ]]
}

check_options() {
  [ -n "$type" ] || fail "--type is missing, such as --type=v5litepod-256"
  case $type in
    v5litepod-* | v6e-*) # https://docs.cloud.google.com/tpu/docs/v6e
      [[ ${type##*-} =~ ^(1|4|8|16|32|64|128|256)$ ]] ||
        fail "--type=$type: slices of ${type%-*} have 1, 4, 8, 16, 32, 64, 128 or 256 chips"
      ;;
  esac
  [ -z "$runtime" ] || return 0
  case $type in
    v5litepod-*) runtime=v2-alpha-tpuv5-lite ;;
    v5p-*) runtime=v2-alpha-tpuv5 ;;
    v6e-*) runtime=v2-alpha-tpuv6e ;;
    v2-* | v3-* | v4-*) runtime=tpu-ubuntu2204-base ;;
    *) fail "--type=$type: no TPU software version is known for it, give one by --runtime" ;;
  esac
}

# Asks for SIGTERM and five minutes before maintenance, for the types that can have them and if gcloud
# knows how: it is documented for its alpha commands only. Sets flags and command.
# https://docs.cloud.google.com/tpu/docs/autocheckpoint
ask_for_autocheckpoint() {
  local release
  case $type in v2-* | v3-* | v4-* | v5litepod-*) ;; *) return 0 ;; esac
  for release in '' alpha; do
    if gcloud $release compute tpus queued-resources create --help 2> /dev/null < /dev/null |
      grep -q -e --autocheckpoint-enabled; then
      flags+=(--autocheckpoint-enabled)
      command=(gcloud ${release:+"$release"} compute tpus queued-resources)
      return 0
    fi
  done
}

# shellcheck disable=SC2086
request() {
  local flags=("--accelerator-type=$type" "--runtime-version=$runtime")
  local command=(gcloud compute tpus queued-resources)
  if ((slices > 1)); then
    flags+=("--node-count=$slices" "--node-prefix=$name")
  else
    flags+=("--node-id=$name")
  fi
  [ -z "$spot" ] || flags+=(--spot)
  [ -z "$valid_until" ] || flags+=("--valid-until-duration=$valid_until")
  [ -n "$dry_run" ] || ask_for_autocheckpoint
  run "${command[@]}" create "$name" "${flags[@]}" ${TPU_CREATE_FLAGS:-} \
    "${where[@]+"${where[@]}"}" --quiet
}

delete() {
  queued delete "$name" --force
}

run_verb "$@"
