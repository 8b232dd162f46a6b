#!/usr/bin/env bash
# TPU slices of a GKE cluster that has the JobSet controller, with gcloud, docker and kubectl.
#
#     launch/gke.sh create  NAME --cluster=CLUSTER --location=PLACE --topology=v5e:16x16 [--spot]
#                                                 the node pool (with --slices=N: N of them)
#     launch/gke.sh install IMAGE                 builds an image of the last commit's files, pushes it
#                                                 and prints its digest: as --image, HOST/NAME@sha256:...
#                                                 stays the same code, whatever is pushed later
#     launch/gke.sh queue   QUEUE --topology=v5e:16x16
#                                                 a queue of Kueue for --slices=N of that shape
#     launch/gke.sh run     NAME --image=IMAGE --topology=v5e:16x16 -- FLAG...
#                                                 python -m bert_jax.main FLAG... on every host,
#                                                 restarted after a preemption until it is done
#     launch/gke.sh follow  NAME                  the first host's log
#     launch/gke.sh status  NAME                  the status of the JobSet and its pods
#     launch/gke.sh stop    NAME                  ends the run by SIGTERM, on which it saves
#     launch/gke.sh delete  NAME --cluster=CLUSTER --location=PLACE
#                                                 deletes the run and its node pools, which cost
#                                                 until then (give the --slices=N of create, and
#                                                 for a TPU7x also its --topology)
#
# Options, before the --:
#     --topology=GENERATION:SHAPE     as preflight takes it: v4:4x4x4, v5e:16x16, v5p:4x4x4,
#                                     v6e:16x16, tpu7x:4x4x4
#     --slices=N                      N slices of that shape in one run
#     --zone=ZONE                     of the nodes, if --location is a region
#     --spot                          cheaper, and may be taken away at any time; give it to run, too,
#                                     whose pods then end within the 15 s that such nodes leave
#     --commit=COMMIT                 whose files the image gets: the last one, unless given
#     --restarts=N                    how often a run may be restarted (100)
#     --queue=QUEUE                   the queue of Kueue that starts the run's pods, all at once
#     --service-account=NAME          Kubernetes account that may use the bucket (default)
#     --project=PROJECT               default: gcloud's own setting
#     --tool=sweep                    run python -m bert_jax.tools.sweep FLAG... instead
#     --tool=prepare --pods=N [--cpus=C]
#                                     prepare a text in place of a run, without --topology: N pods of
#                                     C CPUs (16), on nodes without TPUs, divide it among them, and
#                                     one more makes the store (JobSet 0.8 or later)
#     --shared-disk                   the workdir is not a gs:// path, but all hosts mount it
#     --dry-run                       print the commands without running them
#
# GKE_CREATE_FLAGS are passed unchanged to gcloud container node-pools create, for example
# --node-locations=ZONE or --reservation-affinity=specific --reservation=NAME.
# GKE recreates a preempted spot slice and the JobSet restarts the run, whether or not anyone
# watches; exit statuses 2, bad input or configuration, and 3, it diverged, end the run.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=launch/common.sh
. "$root/launch/common.sh"

cluster='' location='' project='' topology='' slices=1 spot='' image='' restarts=100
pods='' cpus=16 service_account=default queue='' shared_disk='' dry_run='' tool='' zone='' asked_commit=''

verb=${1:-}
case $verb in
  create | install | queue | run | follow | status | stop | delete) shift ;;
  --help | -h) usage && exit 0 ;;
  *) usage >&2 && exit 2 ;;
esac
name=${1:-}
case $name in -* | '') fail "$verb: the name is missing, see --help" ;; esac
shift
while [ $# -gt 0 ]; do
  case $1 in
    --cluster=*) cluster=${1#*=} ;;
    --location=*) location=${1#*=} ;;
    --project=*) project=${1#*=} ;;
    --topology=*) topology=${1#*=} ;;
    --slices=*) slices=${1#*=} ;;
    --image=*) image=${1#*=} ;;
    --restarts=*) restarts=${1#*=} ;;
    --pods=*) pods=${1#*=} ;;
    --cpus=*) cpus=${1#*=} ;;
    --queue=*) queue=${1#*=} ;;
    --service-account=*) service_account=${1#*=} ;;
    --zone=*) zone=${1#*=} ;;
    --commit=*) asked_commit=${1#*=} ;;
    --spot) spot=1 ;;
    --shared-disk) shared_disk=1 ;;
    --dry-run) dry_run=1 ;;
    --tool=*) tool=${1#*=} ;;
    --help | -h) usage && exit 0 ;;
    --) shift && break ;;
    *) fail "$1 is not an option of gke.sh (options are written --NAME=VALUE, flags of the run" \
      "come after --); see --help" ;;
  esac
  shift
done
[[ $slices =~ ^[1-9][0-9]*$ ]] || fail "--slices=$slices: give a number from 1"
[[ $restarts =~ ^[0-9]+$ ]] || fail "--restarts=$restarts: give a number"
check_tool "$tool"
if [ "$verb" != install ] && ! [[ $name =~ ^[a-z]([-a-z0-9]*[a-z0-9])?$ ]]; then
  fail "$verb: NAME=$name is none that Kubernetes takes: lower-case letters, digits and -, a letter first"
fi
if [[ $image$service_account$queue =~ [[:space:]] ]]; then
  fail "--image, --queue and --service-account are names without white space"
fi

# Whether a workload policy places the hosts of a slice, in the stead of --tpu-topology:
# https://docs.cloud.google.com/kubernetes-engine/docs/concepts/tpu-ironwood
has_policy() {
  [[ $topology == tpu7x:* ]] && ((hosts > 1))
}

# Refuses a region without a zone: GKE would make the nodes of a pool in each of its zones, and a
# slice is in one: https://docs.cloud.google.com/kubernetes-engine/docs/how-to/tpus
check_zone() {
  case $location in
    *-[a-z]) [ -z "$zone" ] || [ "$zone" = "$location" ] ||
      fail "--zone=$zone: --location=$location is another zone" ;;
    *)
      case " ${GKE_CREATE_FLAGS:-}" in *' --node-locations'*) return ;; esac
      [ -n "$zone" ] || fail "--location=$location is a region, which would get nodes in each of" \
        "its zones: name the one that has the TPUs, such as --zone=$location-a"
      [[ $zone == "$location"-[a-z] ]] || fail "--zone=$zone is not in --location=$location"
      ;;
  esac
}

# shellcheck disable=SC2086
create() {
  local slice flags
  need cluster "$cluster" && need location "$location" && read_topology "$topology"
  check_zone
  flags=("--cluster=$cluster" "--location=$location" "--machine-type=$machine"
    "--num-nodes=$hosts" --scopes=cloud-platform)
  if has_policy; then
    create_workload_policy "$name" "$(region_of "$location")" ${project:+"--project=$project"}
    flags+=("--placement-policy=$name")
  elif ((hosts > 1)); then
    flags+=("--tpu-topology=$shape")
  fi
  [ -z "$zone" ] || flags+=("--node-locations=$zone")
  [ -z "$spot" ] || flags+=(--spot)
  [ -z "$project" ] || flags+=("--project=$project")
  for ((slice = 0; slice < slices; slice++)); do
    run gcloud container node-pools create "$name-$slice" "${flags[@]}" ${GKE_CREATE_FLAGS:-} --quiet
  done
}

delete() {
  local slice flags
  need cluster "$cluster" && need location "$location"
  [ -z "$topology" ] || read_topology "$topology"
  flags=("--cluster=$cluster" "--location=$location")
  [ -z "$project" ] || flags+=("--project=$project")
  run kubectl delete jobset "$name" --ignore-not-found
  for ((slice = 0; slice < slices; slice++)); do
    run gcloud container node-pools delete "$name-$slice" "${flags[@]}" --quiet
  done
  if has_policy; then
    delete_workload_policy "$name" "$(region_of "$location")" ${project:+"--project=$project"}
  fi
}

# Prints a filled-in template. Texts and the list of flags are JSON, which is valid YAML.
# Arguments: the template; flags of the run.
render() {
  local template=$1 labels='{}' join_seconds=604800 grace=900
  shift
  if [ -n "$queue" ]; then
    labels="{\"kueue.x-k8s.io/queue-name\": \"$queue\"}" join_seconds=1800
  fi
  # https://docs.cloud.google.com/kubernetes-engine/docs/concepts/spot-vms gives no more.
  [ -z "$spot" ] || grace=15
  python3 -c '
import json, re, sys
path, *words = sys.argv[1:]
end = words.index("--")
values = {"flags": json.dumps(words[end + 1:])}
for word in words[:end]:
    name, _, value = word.partition("=")
    is_text = name not in ("slices", "hosts", "chips", "all_chips", "restarts", "labels",
                            "grace", "cpus")
    values[name] = json.dumps(value) if is_text else value  # YAML would read 123 as a number
print(re.sub("{{(.*?)}}", lambda found: values[found[1]], open(path).read()), end="")
' "$root/launch/$template" "name=$name" "slices=$slices" "hosts=$hosts" "chips=$chips" \
    "accelerator=$accelerator" "topology=$shape" "image=$image" "restarts=$restarts" \
    "service_account=$service_account" "module=bert_jax.${tool:+tools.}${tool:-main}" \
    "labels=$labels" "join_seconds=$join_seconds" "all_chips=$((slices * hosts * chips))" \
    "grace=$grace" "cpus=$cpus" -- "$@"
}

# Applies a filled-in template, or prints the command. Arguments: as of `render`.
apply() {
  if [ -n "$dry_run" ]; then
    echo "kubectl apply -f - <<'EOF'"
    render "$@"
    echo EOF
  else
    render "$@" | kubectl apply -f -
  fi
}

start() {
  need image "$image"
  if [ "$tool" = prepare ]; then
    prepare "$@"
    return
  fi
  read_topology "$topology"
  if [ -z "$queue" ] && ((slices > 1)); then
    say "note: slices that have come wait for the others up to 7 days, and cost that long:" \
      "--queue=QUEUE starts them together (docs/pods.md)"
  fi
  apply gke_jobset.yaml "$@"
}

# Arguments: flags of tools.prepare.
prepare() {
  [ -z "$topology" ] || fail "--tool=prepare needs no TPUs: give --pods=N in place of --topology"
  need pods "$pods"
  [[ $pods =~ ^[1-9][0-9]{0,4}$ ]] || fail "--pods=$pods: give a number from 1"
  [[ $cpus =~ ^[1-9][0-9]*$ ]] || fail "--cpus=$cpus: give a number from 1"
  hosts=$pods chips=0 accelerator='' shape=''
  apply gke_prepare.yaml "$@"
}

# The image has the files of a commit, with its id, not those of the folder.
install() {
  local files commit status=0
  choose_commit
  files=$(mktemp -d ${dry_run:+-u}) # what is only printed makes no folder
  run mkdir -p "$files/bert_jax" && run git -C "$root" archive --output="$files/archive.tar" "$commit" &&
    run tar -xf "$files/archive.tar" -C "$files/bert_jax" &&
    run docker build --tag "$name" --file "$files/bert_jax/launch/Dockerfile" "$files/bert_jax" &&
    run docker push "$name" &&
    run docker inspect '--format={{index .RepoDigests 0}}' "$name" || status=$?
  run rm -rf "$files"
  return "$status"
}

case $verb in
  run) check_workdir "$@" ;;
  *) [ $# = 0 ] || fail "$verb takes no flags of the run: $*" ;;
esac
case $verb in
  run) start "$@" ;;
  queue) read_topology "$topology" && apply gke_kueue.yaml ;;
  install) install ;;
  follow)
    run kubectl logs --follow --tail=100 --selector \
      "jobset.sigs.k8s.io/jobset-name=$name,jobset.sigs.k8s.io/job-index=0,batch.kubernetes.io/job-completion-index=0"
    ;;
  status)
    run kubectl get jobset "$name"
    run kubectl get pods --selector "jobset.sigs.k8s.io/jobset-name=$name"
    ;;
  stop) run kubectl delete jobset "$name" ;;
  *) "$verb" ;;
esac
