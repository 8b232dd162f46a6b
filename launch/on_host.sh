#!/usr/bin/env bash
# What slice.sh runs on each host of a slice. A run has its own session, so that it outlives the
# connection that started it; ~/.bert_jax holds its flags, process id, log and exit status.
#
#     launch/on_host.sh install           makes .venv; installs Python 3.11 first if there is none
#     launch/on_host.sh start FLAG...     stops what runs, starts python -m bert_jax.main FLAG...
#                                         (bert_jax.tools.NAME if the first flag is --tool=NAME)
#     launch/on_host.sh status [FLAG...]  running, other (runs with other flags), none, lost (ended
#                                         without a status, as by a reboot), stopped, or exit status
#     launch/on_host.sh stop              SIGTERM, on which a run saves; SIGKILL after 15 minutes
#     launch/on_host.sh follow            shows the log until the run ends
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
state=$HOME/.bert_jax
mkdir -p "$state"

pid() {
  cat "$state/pid" 2> /dev/null || true
}

running() {
  local pid command=()
  pid=$(pid)
  # After a reboot another program may have this process id.
  [ -n "$pid" ] && mapfile -d '' -t command 2> /dev/null < "/proc/$pid/cmdline" &&
    [[ ${command[*]} == *on_host.sh* ]]
}

stop() {
  local deadline=$((SECONDS + ${STOP_SECONDS:-900}))
  running || return 0
  kill -TERM -- "-$(pid)"
  while running && ((SECONDS < deadline)); do sleep 0.2; done
  ! running || kill -KILL -- "-$(pid)"
}

verb=${1:-}
shift || true
case $verb in
  install)
    if ! command -v python3.11 && ! command -v python3.12 && ! command -v python3.13; then
      python3 -m pip install --quiet --user uv
      python3 -m uv python install --quiet 3.11
      PYTHON=$(python3 -m uv python find 3.11)
      export PYTHON
    fi > /dev/null
    # shellcheck source=launch/venv.sh
    . launch/venv.sh
    ;;
  start)
    stop
    rm -f "$state/status" "$state/stopped"
    printf '%q ' "$@" > "$state/flags"
    nohup setsid launch/on_host.sh supervise "$@" >> "$state/log" 2>&1 < /dev/null &
    echo $! > "$state/pid"
    ;;
  supervise)
    trap 'echo $? > "$state/status"' EXIT
    # shellcheck source=launch/venv.sh
    . launch/venv.sh
    trap : TERM # the run gets the signal too, saves, and ends with 143
    module=bert_jax.main
    case ${1:-} in --tool=*) module=bert_jax.tools.${1#*=} && shift ;; esac
    echo "$(date '+%F %T') python -m $module $*"
    if [ "$module" = bert_jax.tools.prepare ]; then # the first host also makes what another lacks
      place=$(python -c '
from bert_jax.runtime.joining import find_cluster
cluster = find_cluster(None, None, 600)
print(f"{cluster.index}/{cluster.count}" if cluster else "0/1")')
      python -m "$module" "--share=$place" "$@"
      [ "${place%/*}" = 0 ] || exit 0
    fi
    python -m "$module" "$@"
    ;;
  status)
    if running; then
      if [ $# = 0 ] || [ "$(printf '%q ' "$@")" = "$(cat "$state/flags")" ]; then
        echo running
      else
        echo other
      fi
    elif [ -e "$state/stopped" ]; then
      echo stopped
    elif [ -s "$state/status" ]; then
      cat "$state/status"
    elif [ -e "$state/pid" ]; then
      echo lost
    else
      echo none
    fi
    ;;
  stop) touch "$state/stopped" && stop ;;
  follow)
    [ -e "$state/log" ] || { echo "error: no run was started here" >&2 && exit 2; }
    tail -n 100 --pid="$(pid)" -F "$state/log"
    ;;
  *)
    sed -nE '2,/^([^#]|$)/s/^# ?//p' "$0"
    exit 2
    ;;
esac
