#!/usr/bin/env bash
# Cloud TPU slices with gcloud, from your own machine.
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
#     --tool=sweep                    run python -m bert_jax.tools.sweep FLAG... instead; with
#                                     --tool=prepare the hosts divide the text among them
#     --shared-disk                   the workdir is not a gs:// path, but all hosts mount it
#     --delete                        relaunch deletes the slice when the run is done or given up
#     --dry-run                       print the commands without running them
#
# Slices are requested as queued resources: granted at once if there is capacity, otherwise in turn.
# TPU_CREATE_FLAGS and TPU_SSH_FLAGS are passed unchanged to gcloud, for example
# --service-account=NAME or --tunnel-through-iap. A killed run resumes from its last checkpoint.
# Exit status 0 means done, 2 bad input (relaunch stops); anything else is a fault. relaunch gives
# up at the fifth fault, counting anew after an hour without one. A slice whose first host cannot be
# reached for 15 minutes (UNREACHABLE_SECONDS) counts as a fault; it is deleted and requested again.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=launch/common.sh
. "$root/launch/common.sh"

zone='' project='' type='' runtime='' spot='' slices=1 valid_until='' shared_disk='' dry_run=''
delete_after='' tool=''
pause=${POLL_SECONDS:-60}

verb=${1:-}
case $verb in
  create | install | run | follow | status | relaunch | stop | delete) shift ;;
  --help | -h) usage && exit 0 ;;
  *) usage >&2 && exit 2 ;;
esac
name=${1:-}
case $name in -* | '') fail "$verb: name the slice, as in: launch/tpu_vm.sh $verb NAME" ;; esac
shift
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

# Runs a bash command line on hosts. Arguments: --node, --worker, command line.
# shellcheck disable=SC2086
ssh_to() {
  local node=$1 worker=$2
  queued ssh "$name" "--node=$node" "--worker=$worker" "--command=$3" ${TPU_SSH_FLAGS:-}
}

# Prints the command line of on_host.sh with its arguments, quoted for the hosts' shell.
on_host() {
  echo "cd bert_jax && launch/on_host.sh $(quote "$@")"
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

ask_status() {
  ssh_to 0 0 "{ $(on_host status "$@"); } 2> /dev/null || echo none"
}

# Prints the status that on_host.sh gives on the first host, or unreachable.
run_status() {
  local status
  if status=$(ask_status "$@" 2> /dev/null); then
    echo "$status" | tail -n 1
  else
    echo unreachable
  fi
}

# Whether the first host is gone, even if the queued resource does not say so yet.
host_is_gone() {
  local node=$name state
  ((slices == 1)) || node=$name-0
  state=$(run gcloud compute tpus tpu-vm describe "$node" '--format=value(state)' \
    "${where[@]+"${where[@]}"}" --quiet 2> /dev/null) || return 1
  [[ $state == PREEMPTED || $state == TERMINATED ]]
}

check_type() {
  [ -n "$type" ] || fail "--type is missing, such as --type=v5litepod-256"
  [ -z "$runtime" ] || return 0
  case $type in
    v5litepod-*) runtime=v2-alpha-tpuv5-lite ;;
    v5p-*) runtime=v2-alpha-tpuv5 ;;
    v6e-*) runtime=v2-alpha-tpuv6e ;;
    v2-* | v3-* | v4-*) runtime=tpu-ubuntu2204-base ;;
    *) fail "--type=$type: no TPU software version is known for it, give one by --runtime" ;;
  esac
}

# Whether to request SIGTERM and five minutes before maintenance: for these types, if gcloud can.
# https://cloud.google.com/tpu/docs/autocheckpoint
autocheckpoint() {
  case $type in v2-* | v3-* | v4-* | v5litepod-*) ;; *) return 1 ;; esac
  [ -z "$dry_run" ] && gcloud compute tpus queued-resources create --help 2> /dev/null |
    grep -q -e --autocheckpoint-enabled
}

# shellcheck disable=SC2086
request() {
  local flags=("--accelerator-type=$type" "--runtime-version=$runtime")
  if ((slices > 1)); then
    flags+=("--node-count=$slices" "--node-prefix=$name")
  else
    flags+=("--node-id=$name")
  fi
  [ -z "$spot" ] || flags+=(--spot)
  [ -z "$valid_until" ] || flags+=("--valid-until-duration=$valid_until")
  ! autocheckpoint || flags+=(--autocheckpoint-enabled)
  queued create "$name" "${flags[@]}" ${TPU_CREATE_FLAGS:-}
}

create() {
  local state last=''
  check_type
  request
  if [ -n "$dry_run" ]; then
    echo "# every $pause seconds, until it is ACTIVE:"
    describe
    return
  fi
  while true; do
    state=$(slice_state)
    [ "$state" = "$last" ] || say "$name is $state"
    last=$state
    case $state in
      ACTIVE) break ;;
      CREATING | ACCEPTED | WAITING_FOR_RESOURCES | PROVISIONING | UNKNOWN) sleep "$pause" ;;
      *) fail "$name became $state: see gcloud compute tpus queued-resources describe $name" ;;
    esac
  done
}

delete() {
  queued delete "$name" --force
}

# shellcheck disable=SC2086
install() {
  local archive
  archive=$(mktemp)
  git -C "$root" diff --quiet HEAD || say "note: changes that are not committed are not sent"
  run git -C "$root" archive --format=tar.gz --output="$archive" HEAD \
    && queued scp "$archive" "$name:bert_jax.tar.gz" --node=all --worker=all ${TPU_SSH_FLAGS:-} \
    && run rm "$archive" \
    && ssh_to all all "mkdir -p bert_jax && tar -xzf bert_jax.tar.gz -C bert_jax && $(on_host install)"
}

start() {
  ssh_to all all "$(on_host start ${tool:+"--tool=$tool"} "$@")"
}

end() {
  if [ -n "$delete_after" ]; then delete; else say "$name still costs: tpu_vm.sh delete $name"; fi
  exit "$1"
}

relaunch() {
  local state last='' status failures=0 started=$SECONDS unreachable=''
  local todo=look # look: check what runs; watch: wait for the run; begin: install and start it
  check_type
  while true; do
    state=$(slice_state)
    [ "$state" = "$last" ] || say "$name is $state"
    last=$state
    case $state in
      ACTIVE) ;;
      MISSING)
        status=0
        request 2> "$errors" || status=1
        cat "$errors" >&2
        if [ "$status" = 1 ]; then
          grep -qE 'UNAVAILABLE|RESOURCE_EXHAUSTED|DEADLINE_EXCEEDED|INTERNAL' "$errors" ||
            count_failure "the request for $name was refused"
          sleep "$pause"
        fi
        todo=look
        continue
        ;;
      CREATING | ACCEPTED | WAITING_FOR_RESOURCES | PROVISIONING | UNKNOWN)
        sleep "$pause"
        continue
        ;;
      *) # SUSPENDING, SUSPENDED, FAILED, DELETING
        [ "$state" != FAILED ] || count_failure "the request for $name failed"
        delete || sleep "$pause"
        continue
        ;;
    esac

    status=$(run_status ${tool:+"--tool=$tool"} "$@")
    if [ "$status" = unreachable ]; then
      if [ -z "$unreachable" ]; then
        unreachable=$SECONDS
        say "the first host of $name does not answer"
      fi
      if host_is_gone; then
        delete || true
      elif ((SECONDS - unreachable >= ${UNREACHABLE_SECONDS:-900})); then
        count_failure "$name is ACTIVE and its first host cannot be reached by ssh"
        unreachable=''
        delete || true
      fi
      sleep "$pause"
      continue
    fi
    unreachable=''
    case $todo.$status in
      look.running) say "the run is going on" && todo=watch ;;
      look.other) fail "$name runs something else: end it with tpu_vm.sh stop $name" ;;
      watch.running) sleep "$pause" ;;
      watch.0) say "the run is done" && end 0 ;;
      watch.2) say "bad input or configuration, as tpu_vm.sh follow $name shows" && end 2 ;;
      watch.stopped) say "the run was stopped by tpu_vm.sh stop $name" && end 143 ;;
      *)
        case $todo.$status in
          look.* | begin.*) todo=begin ;;
          *.lost | *.143) ;;
          *) count_failure "the run ended with status $status" ;;
        esac
        say "starting the run"
        if { [ "$todo" = watch ] || install; } && start "$@"; then
          started=$SECONDS
          todo=watch
        else
          todo=begin
          sleep "$pause"
          # A host that is being preempted fails here too, which is no fault of the run.
          if [ "$(slice_state)" = ACTIVE ] && ! host_is_gone; then
            count_failure "installation or start failed"
          fi
        fi
        ;;
    esac
  done
}

count_failure() {
  ((SECONDS - started < 3600)) || failures=0
  started=$SECONDS
  failures=$((failures + 1))
  say "$1 ($failures of 5 times)"
  ((failures < 5)) || { say "given up" && end 1; }
}

# Prints what relaunch runs if nothing goes wrong, and what it runs after a preemption.
show_relaunch() {
  check_type
  describe
  create
  install
  start "$@"
  echo "# every $pause seconds, until the run is done:"
  describe
  ask_status "$@"
  echo "# after a preemption, before all of this again:"
  delete
}

case $verb in
  run | relaunch) check_workdir "$@" ;;
  *) [ $# = 0 ] || fail "$verb takes no flags of the run: $*" ;;
esac
case $verb in
  run) start "$@" ;;
  relaunch)
    errors=$(mktemp) && trap 'rm -f "$errors"' EXIT
    if [ -n "$dry_run" ]; then show_relaunch "$@"; else relaunch "$@"; fi
    ;;
  follow) ssh_to 0 0 "$(on_host follow)" ;;
  status) describe && ssh_to all all "$(on_host status)" ;;
  stop) ssh_to all all "$(on_host stop)" ;;
  *) "$verb" ;;
esac
