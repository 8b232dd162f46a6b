#!/usr/bin/env bash
# Runs a command as N hosts of one run on this machine: N processes that connect over loopback.
#
#     launch/local_hosts.sh 2 python -m bert_jax.main --config=configs/tiny_pretrain.py
#
# Each gets JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID. The caller chooses the
# devices per host: XLA_FLAGS=--xla_force_host_platform_device_count=4 gives each four virtual ones.
# Standard output is host 0's; everything else goes to standard error. SIGTERM and Ctrl-C are passed
# to every host as SIGTERM. When a host fails, the others get a minute (LOCAL_HOSTS_GRACE, in
# seconds) to end; then they are killed. The exit status is that of the first host to fail, or 0.
set -euo pipefail

if [[ ! ${1:-} =~ ^[1-9][0-9]*$ ]] || [ $# -lt 2 ]; then
  echo "usage: launch/local_hosts.sh N COMMAND [ARGUMENT...]   (N hosts, at least 1)" >&2
  exit 2
fi
hosts=$1
shift

# Below the range from which systems take ports for outgoing connections.
port=$((20000 + RANDOM % 12000))
while (: > "/dev/tcp/127.0.0.1/$port") 2> /dev/null; do port=$((20000 + RANDOM % 12000)); done
export JAX_COORDINATOR_ADDRESS=127.0.0.1:$port JAX_COORDINATOR_BIND_ADDRESS=127.0.0.1:$port
export JAX_NUM_PROCESSES=$hosts

run=(env)
# With setpriv (Linux), the hosts end with this script even if the script is killed.
if setpriv --pdeathsig KILL true 2> /dev/null; then run=(setpriv --pdeathsig KILL env); fi

exec 3>&2 2> /dev/null  # hides bash's own messages about killed processes
pids=()  # process ids of the hosts that still run, by host number
signal_all() { for pid in "${pids[@]+"${pids[@]}"}"; do kill "-$1" "$pid" || true; done; }
trap 'signal_all TERM' TERM INT
trap 'signal_all KILL' EXIT
for ((host = 0; host < hosts; host++)); do
  if ((host == 0)); then
    "${run[@]}" JAX_PROCESS_ID=0 "$@" 2>&3 &
  else
    "${run[@]}" JAX_PROCESS_ID="$host" "$@" >&3 2>&3 &
  fi
  pids[host]=$!
done

status=0
deadline=
while ((${#pids[@]})); do
  for host in "${!pids[@]}"; do
    if kill -0 "${pids[host]}"; then continue; fi
    ended=0
    wait "${pids[host]}" || ended=$?
    unset 'pids[host]'
    if ((ended > 128 && ended != 143)); then
      echo "local_hosts: host $host was ended by signal $((ended - 128))" >&3
    fi
    if ((status == 0 && ended != 0)); then
      status=$ended
      deadline=$((SECONDS + ${LOCAL_HOSTS_GRACE:-60}))
    fi
  done
  if [ -n "$deadline" ] && ((SECONDS > deadline && ${#pids[@]})); then signal_all KILL; fi
  ((${#pids[@]} == 0)) || sleep 0.1
done
exit "$status"
