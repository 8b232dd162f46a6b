# shellcheck shell=bash
# Sourced by tpu_vm.sh, gke.sh and slurm.sh.

fail() {
  echo "error: $*" >&2
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
