#!/usr/bin/env bash
# TPU slices as managed instance groups of Compute Engine with gcloud, from your own machine.
#
#     launch/instance_group.sh create   NAME --topology=v6e:4x4 --zone=Z --project=P [--spot]
#     launch/instance_group.sh install  NAME ...     the last commit's files and .venv on every host
#     launch/instance_group.sh run      NAME ... -- FLAG...
#                                                    python -m bert_jax.main FLAG... on every host;
#                                                    what runs there saves and stops first
#     launch/instance_group.sh follow   NAME ...     the log, until the run ends
#     launch/instance_group.sh status   NAME ...     the status of each host and of the run
#     launch/instance_group.sh relaunch NAME --topology=... -- FLAG...
#                                                    create, install and run, repeated after each
#                                                    preemption until the run is done
#     launch/instance_group.sh stop     NAME ...     SIGTERM on every host: the run saves and ends,
#                                                    and a relaunch that watches it ends too
#     launch/instance_group.sh delete   NAME ...     deletes the slice, which costs until then
#
# Options, before the --:
#     --zone=ZONE --project=PROJECT   every command needs them
#     --topology=GENERATION:SHAPE     as preflight takes it: v5p:2x2x4, v6e:4x4, tpu7x:4x4x4
#     --spot                          cheaper, and may be taken away at any time
#     --flex-start=DURATION           wait for capacity, and have it at most so long: 12h, up to 7d
#     --tool=sweep                    run python -m bert_jax.tools.sweep FLAG... instead
#     --tool=prepare                  prepare a text in place of a run: the hosts divide it, and the first
#                                     makes the store (machines without TPUs are cheaper: docs/pods.md)
#     --shared-disk                   the workdir is not a gs:// path, but all hosts mount it
#     --commit=COMMIT                 whose files the hosts get: the last one, or that which a relaunched
#                                     run began with, unless given
#     --delete                        relaunch deletes the slice when the run is done or given up
#     --dry-run                       print the commands without running them
#
# A slice is a group of machines that are made all at once, when there is capacity, by an instance
# template; several machines are connected by a workload policy. All three are called NAME.
# TPU_CREATE_FLAGS and TPU_SSH_FLAGS are passed unchanged to gcloud compute instance-templates
# create and to gcloud compute ssh and scp, for example --no-address and --tunnel-through-iap.
# A killed run resumes from its last checkpoint. Exit status 0 means done, 2 bad input and 3 that the
# run diverged (relaunch stops); anything else is a fault. relaunch gives up at the fifth fault,
# counting anew after an hour without one. A slice whose first host cannot be reached for 15 minutes
# (UNREACHABLE_SECONDS) counts as a fault; it is deleted and requested again.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=launch/slice.sh
. "$root/launch/slice.sh"

zone='' project='' topology='' spot='' flex_start='' shared_disk='' dry_run='' delete_after=''
tool='' asked_commit=''

read_verb "$@"
shift 2
while [ $# -gt 0 ]; do
  case $1 in
    --zone=*) zone=${1#*=} ;;
    --project=*) project=${1#*=} ;;
    --topology=*) topology=${1#*=} ;;
    --spot) spot=1 ;;
    --flex-start=*) flex_start=${1#*=} ;;
    --shared-disk) shared_disk=1 ;;
    --commit=*) asked_commit=${1#*=} ;;
    --tool=*) tool=${1#*=} ;;
    --delete) delete_after=1 ;;
    --dry-run) dry_run=1 ;;
    --help | -h) usage && exit 0 ;;
    --) shift && break ;;
    *) fail "$1 is not an option of instance_group.sh (options are written --NAME=VALUE, flags of" \
      "the run come after --); see --help" ;;
  esac
  shift
done
check_tool "$tool"
need zone "$zone" && need project "$project"
region=$(region_of "$zone")

check_options() {
  read_topology "$topology"
  # https://docs.cloud.google.com/tpu/docs/tpus-and-migs
  case $topology in
    v5p:*) image=ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e ;;
    v6e:*) image=ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e ;;
    tpu7x:*) image=ubuntu-accel-2404-amd64-tpu-tpu7x ;;
    *) fail "--topology=$topology: instance groups have v5p, v6e and tpu7x; for older TPUs use" \
      "launch/tpu_vm.sh" ;;
  esac
  [ -z "$spot" ] || [ -z "$flex_start" ] || fail "--spot --flex-start=$flex_start: give one of them"
}

# Runs gcloud on the group. Arguments: subcommand and its flags.
group() {
  local subcommand=$1
  shift
  run gcloud compute instance-groups managed "$subcommand" "$name" "--zone=$zone" \
    "--project=$project" "$@" --quiet
}

# Each machine gets at the end of its time, or when it is preempted, what its way of provisioning
# takes: https://docs.cloud.google.com/tpu/docs/spot-compute
# shellcheck disable=SC2086
create_template() {
  local flags=("--project=$project" "--machine-type=$machine" --maintenance-policy=TERMINATE
    --image-project=ubuntu-os-accelerator-images "--image-family=$image" --boot-disk-size=200GB
    --scopes=cloud-platform)
  [ -z "$spot" ] || flags+=(--provisioning-model=SPOT --instance-termination-action=STOP)
  [ -z "$flex_start" ] || flags+=(--provisioning-model=FLEX_START "--max-run-duration=$flex_start"
    --instance-termination-action=DELETE)
  run gcloud compute instance-templates create "$name" "${flags[@]}" ${TPU_CREATE_FLAGS:-} --quiet
}

# A group repairs no machine by itself: the slice would lose its connections.
# https://docs.cloud.google.com/compute/docs/tpus/create-tpu-mig-multi-host-slice
create_group() {
  local flags=("--template=$name" "--size=$hosts" --default-action-on-vm-failure=do-nothing)
  ((hosts == 1)) || flags+=(--target-size-policy-mode=bulk
    "--workload-policy=projects/$project/regions/$region/resourcePolicies/$name")
  group create "${flags[@]}"
}

request() {
  if { ((hosts == 1)) || create_workload_policy "$name" "$region" "--project=$project"; } &&
    create_template && create_group; then
    return
  fi
  delete_parts > /dev/null 2>&1
  return 1
}

delete() {
  group delete && delete_parts
}

# Deletes what the group was made of. A slice of one host has no policy, and what is asked for in
# vain leaves only a part.
delete_parts() {
  run gcloud compute instance-templates delete "$name" "--project=$project" --quiet || true
  delete_workload_policy "$name" "$region" "--project=$project" || true
}

# Prints each host and its status, a line each.
describe() {
  group list-instances '--format=value(instance.basename(),instanceStatus)'
}

# By the states of its machines: https://cloud.google.com/compute/docs/instances/instance-lifecycle
slice_state() {
  local statuses
  if ! statuses=$(describe 2> /dev/null | cut -s -f 2); then
    case $(describe 2>&1) in
      *'not found'*) echo MISSING ;;
      *) echo UNKNOWN ;; # no network, say
    esac
    return
  fi
  case $statuses in
    *STOP* | *TERMINATED* | *SUSPEND* | *DEPROVISIONING*) echo SUSPENDED ;;
    *PROVISIONING* | *STAGING* | *PENDING* | *REPAIRING*) echo PROVISIONING ;;
    *RUNNING*) # a machine without a status, while others run, is gone
      if grep -qv RUNNING <<< "$statuses"; then echo SUSPENDED; else echo ACTIVE; fi
      ;;
    *) echo WAITING_FOR_RESOURCES ;;
  esac
}

host_is_gone() {
  [ "$(slice_state)" = SUSPENDED ]
}

# Runs a function on hosts, on all of them at once. Arguments: first or all; the function and its
# arguments, before which it gets the name of the host.
on_hosts() {
  local which=$1 function=$2 names=HOST host process status=0
  shift 2
  [ -n "$dry_run" ] || names=$(describe | cut -f 1) || return
  [ "$which" = all ] || names=${names%%$'\n'*}
  [ -n "$names" ] || return
  processes=()
  trap end_processes INT TERM
  set -m # gives each its own process group
  for host in $names; do
    "$function" "$host" "$@" < /dev/null &
    processes+=($!)
  done
  set +m
  for process in "${processes[@]}"; do
    wait "$process" || status=$?
  done
  trap - INT TERM
  return "$status"
}

# Whoever ends this script ends what it started here, which goes on at the hosts.
end_processes() {
  local process
  for process in "${processes[@]}"; do
    kill -TERM -- "-$process" 2> /dev/null || true
  done
  exit 143
}

# shellcheck disable=SC2086
ssh_to_one() {
  run gcloud compute ssh "$1" "--zone=$zone" "--project=$project" "--command=$2" \
    ${TPU_SSH_FLAGS:-} --quiet
}

# shellcheck disable=SC2086
copy_to_one() {
  run gcloud compute scp "$2" "$1:bert_jax.tar.gz" "--zone=$zone" "--project=$project" \
    ${TPU_SSH_FLAGS:-} --quiet
}

ssh_to() {
  on_hosts "$1" ssh_to_one "$2"
}

copy_to_hosts() {
  on_hosts all copy_to_one "$1"
}

# Only one host prints more than its errors; jax chooses which.
follow() {
  ssh_to all "$(on_host follow)"
}

run_verb "$@"
