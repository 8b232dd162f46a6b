# shellcheck shell=bash
# Sourced by tpu_vm.sh, instance_group.sh, gke.sh and slurm.sh.

fail() {
  local line="error: $*"
  line=${line//[[:cntrl:]]/?} # in one line, and nothing moves the cursor
  printf '%s\n' "${line:0:1500}" >&2
  exit 2
}

say() {
  echo "$(date +%H:%M:%S) $*" >&2
}

# Prints its arguments on one line, each quoted for a shell if it needs quoting.
quote() {
  local word line=
  for word in "$@"; do
    case $word in
      *[[:cntrl:]]*) word=$(printf %q "$word") ;;
      '' | *[!A-Za-z0-9_./:=@%+,-]*) word="'$(printf %s "$word" | sed "s/'/'\\\\''/g")'" ;;
    esac
    line="$line${line:+ }$word"
  done
  printf '%s\n' "$line"
}

# Runs a command, or only prints it with --dry-run.
run() {
  if [ -n "${dry_run:-}" ]; then quote "$@"; else "$@"; fi
}

# The comment block at the head of the calling script is its --help.
usage() {
  sed -nE '2,/^([^#]|$)/s/^# ?//p' "${root:?}/launch/${0##*/}"
}

# Checks --tool, the tool that is run instead of training.
check_tool() {
  case $1 in '' | sweep | prepare) ;; *) fail "--tool=$1: it is sweep or prepare" ;; esac
}

# Refuses a run whose flags name a --workdir that the hosts would not share, or none. The tool
# prepare has none.
check_workdir() {
  local flag workdir=
  [ "${tool:-}" != prepare ] || return 0
  while [ $# -gt 0 ]; do
    flag=$1
    shift
    case $flag in
      --workdir=*) workdir=${flag#*=} ;;
      --workdir) workdir=${1:-} ;;
    esac
  done
  [ -n "$workdir" ] || fail "--workdir is missing: name the run directory, as in" \
    "-- --config=FILE.py --workdir=gs://BUCKET/RUN"
  case $workdir in
    gs://[!/]*) ;;
    [A-Za-z]*:/*) fail "--workdir=$workdir: a path in a bucket is gs://BUCKET/PATH" ;;
    *) [ -n "${shared_disk:-}" ] || fail "--workdir=$workdir: the hosts share no disk, and a" \
      "preempted one loses its own: use gs://BUCKET/RUN, or --shared-disk if all of them mount it" ;;
  esac
}

need() {
  [ -n "$2" ] || fail "--$1 is missing, see --help"
}

# Sets accelerator (GKE's label), machine, shape, chips (per host) and hosts (per slice) from a
# --topology. Accepts the same slices as bert_jax.tools.preflight.
# shellcheck disable=SC2034
read_topology() {
  local topology=$1 size all=1 largest=0 dims longest fewest=1 sizes
  need topology "$topology"
  shape=${topology#*:}
  case ${topology%%:*} in
    v4) accelerator=tpu-v4-podslice machine=ct4p-hightpu dims=3 longest=16 ;;
    v5e) accelerator=tpu-v5-lite-podslice machine=ct5lp-hightpu dims=2 longest=16 ;;
    v5p) accelerator=tpu-v5p-slice machine=ct5p-hightpu dims=3 longest=24 ;;
    v6e) accelerator=tpu-v6e-slice machine=ct6e-standard dims=2 longest=16 ;;
    tpu7x) accelerator=tpu7x machine=tpu7x-standard dims=3 longest=36 fewest=4 ;;
    *) fail "--topology=$topology: name generation and shape, such as v5e:16x16" ;;
  esac
  [[ $shape =~ ^[1-9][0-9]{0,2}(x[1-9][0-9]{0,2})+$ ]] ||
    fail "--topology=$topology: the shape is like 16x16"
  read -ra sizes <<< "${shape//x/ }"
  for size in "${sizes[@]}"; do
    ((size <= largest)) || largest=$size
    all=$((all * size))
  done
  ((${#sizes[@]} == dims && largest <= longest)) || fail "--topology=$topology: a slice of" \
    "${topology%%:*} has $dims dims of at most $longest chips"
  ((all == 1 && fewest == 1 || (sizes[0] % 2 == 0 && sizes[1] % 2 == 0))) ||
    fail "--topology=$topology: a host has 2x2 chips, which the first two dims have to be" \
      "multiples of"
  chips=$((all < 4 ? all : 4))
  hosts=$((all / chips))
  machine=$machine-${chips}t
}

# Creates the workload policy of a slice's shape, by which Compute Engine connects its hosts:
# https://docs.cloud.google.com/sdk/gcloud/reference/compute/resource-policies/create/workload-policy
# Arguments: name, region, flags of gcloud.
create_workload_policy() {
  local policy=$1 region=$2
  shift 2
  run gcloud compute resource-policies create workload-policy "$policy" --type=HIGH_THROUGHPUT \
    "--accelerator-topology=$shape" "--region=$region" "$@" --quiet
}

delete_workload_policy() {
  local policy=$1 region=$2
  shift 2
  run gcloud compute resource-policies delete "$policy" "--region=$region" "$@" --quiet
}

# Prints the region of a zone; a region is its own.
region_of() {
  case $1 in
    *-[a-z]) echo "${1%-[a-z]}" ;;
    *) echo "$1" ;;
  esac
}
