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
  local word line='' quote="'" escaped="'\\''"
  for word in "$@"; do
    case $word in
      *[[:cntrl:]]*) word=$(printf %q "$word") ;;
      '' | *[!A-Za-z0-9_./:=@%+,-]*) word=$quote${word//$quote/$escaped}$quote ;;
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

# Sets commit, whose files the hosts get: that of --commit, or the last one. Without --commit,
# changes that are not committed are refused.
choose_commit() {
  local changed
  if [ -n "${dry_run:-}" ]; then
    commit=${asked_commit:-HEAD}
    return
  fi
  if [ -z "${asked_commit:-}" ]; then
    changed=$(git -C "$root" status --porcelain 2> /dev/null | grep -E '^[^?]|\.py$' | head -n 1) || true
    [ -z "$changed" ] || fail "changes that are not committed would not be sent (${changed:3}):" \
      "commit them, or give --commit=HEAD to go without them"
  fi
  commit=$(commit_of "${asked_commit:-HEAD}")
  [ -n "$commit" ] || fail "--commit=${asked_commit:-HEAD}: there is no such commit in $root"
}

# Prints the id of a commit; nothing if there is none of this name.
commit_of() {
  git -C "$root" rev-parse --quiet --verify "$1^{commit}" 2> /dev/null || true
}

# Sets accelerator (GKE's label), machine, shape, chips (per host) and hosts (per slice) from a
# --topology. Accepts the shapes that are offered:
# https://docs.cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus
# shellcheck disable=SC2034
read_topology() {
  local topology=$1 size all=1 most small offered last=0 sizes
  need topology "$topology"
  shape=${topology#*:}
  offered='1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16 and 16x16'
  small='2x2x1, 2x2x2, 2x2x4, 2x4x4'
  case ${topology%%:*} in
    v4) accelerator=tpu-v4-podslice machine=ct4p-hightpu most=3072 offered='' ;;
    v5e) accelerator=tpu-v5-lite-podslice machine=ct5lp-hightpu ;;
    v5p) accelerator=tpu-v5p-slice machine=ct5p-hightpu most=6144 offered='' small="1x1x1, $small" ;;
    v6e) accelerator=tpu-v6e-slice machine=ct6e-standard ;;
    tpu7x) accelerator=tpu7x machine=tpu7x-standard most=9216 offered='' ;;
    *) fail "--topology=$topology: name generation and shape, such as v5e:16x16" ;;
  esac
  [[ $shape =~ ^[1-9][0-9]{0,2}(x[1-9][0-9]{0,2})+$ ]] ||
    fail "--topology=$topology: the shape is like 16x16"
  read -ra sizes <<< "${shape//x/ }"
  for size in "${sizes[@]}"; do all=$((all * size)); done
  if [ -n "$offered" ]; then
    [[ " ${offered//,/} " == *" $shape "* ]] ||
      fail "--topology=$topology: slices of ${topology%%:*} are $offered"
  elif [[ " ${small//,/} " != *" $shape "* ]]; then
    for size in "${sizes[@]}"; do
      ((size % 4 == 0 && size >= last)) || all=$((most + 1))
      last=$size
    done
    ((${#sizes[@]} == 3 && all <= most)) || fail "--topology=$topology: slices of" \
      "${topology%%:*} are $small, and three multiples of 4 that do not fall, of at most $most chips"
  fi
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
