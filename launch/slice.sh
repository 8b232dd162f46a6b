# shellcheck shell=bash
# Sourced by tpu_vm.sh and instance_group.sh: what they do with a slice, whoever gives it. A script
# has parsed its options and defines
#
#     check_options         refuses what `request` cannot ask for
#     request               asks for the slice; what is refused leaves nothing behind
#     delete                deletes it
#     describe              prints what gcloud says of it
#     slice_state           prints ACTIVE (all hosts run), a state in which it is being made,
#                           MISSING, UNKNOWN (no network, say), or another: of no use any more
#     host_is_gone          whether the first host is, even if `slice_state` does not say so yet
#     ssh_to HOSTS COMMAND  runs a bash command line on the `first` host or on `all`
#     copy_to_hosts FILE    makes it ~/bert_jax.tar.gz of all hosts
#     follow                shows the log of the run
# shellcheck source=launch/common.sh
. "${root:?}/launch/common.sh"

script=${0##*/}
pause=${POLL_SECONDS:-60}
transient='UNAVAILABLE|RESOURCE_EXHAUSTED|DEADLINE_EXCEEDED|INTERNAL|RESOURCE_POOL_EXHAUSTED'

# Sets verb and name from the first two arguments.
read_verb() {
  verb=${1:-} name=${2:-}
  case $verb in
    create | install | run | follow | status | relaunch | stop | delete) ;;
    --help | -h) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
  esac
  case $name in -* | '') fail "$verb: name the slice, as in: launch/$script $verb NAME" ;; esac
}

# Prints the command line of on_host.sh with its arguments, quoted for the hosts' shell.
on_host() {
  echo "cd bert_jax && launch/on_host.sh $(quote "$@")"
}

ask_status() {
  ssh_to first "{ $(on_host status "$@"); } 2> /dev/null || echo none"
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

create() {
  local state last=''
  check_options
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
      *) fail "$name became $state: see launch/$script status $name" ;;
    esac
  done
}

# Installs the files of $commit.
install() {
  local archive status=0
  archive=$(mktemp ${dry_run:+-u}) # what is only printed makes no file
  run git -C "$root" archive --format=tar.gz --output="$archive" "$commit" \
    && copy_to_hosts "$archive" || status=$?
  run rm -f "$archive"
  ((status == 0)) || return "$status"
  [ -n "$dry_run" ] || keep_commit "$(kept_as installed)"
  ssh_to all "mkdir -p bert_jax && tar -xzf bert_jax.tar.gz -C bert_jax && $(on_host install)"
}

# Prints the name under which git keeps the commit of a run with these flags, or that of the last
# installation. Commits that are made while a run goes on do not change its code.
kept_as() {
  echo "refs/bert_jax/$(quote "$script" "$name" "$@" | git -C "$root" hash-object --stdin)"
}

keep_commit() {
  git -C "$root" update-ref "$1" "$commit" 2> /dev/null || true # of a folder that may only be read
}

# Sets commit, whose files the hosts of a relaunched run get, and the name under which it is kept:
# that of the run's first start, unless --commit names another.
choose_commit_of_run() {
  kept=$(kept_as run "${tool:-}" "$@")
  commit=''
  [ -n "$asked_commit$dry_run" ] || commit=$(commit_of "$kept")
  if [ -z "$commit" ]; then
    choose_commit
    return
  fi
  [ "$commit" = "$(commit_of HEAD)" ] || say "the run began with commit ${commit:0:10}, and goes" \
    "on with it; --commit=HEAD gives it the last one"
}

start() {
  ssh_to all "$(on_host start ${tool:+"--tool=$tool"} "$@")"
}

end() {
  case $1 in 0 | 2 | 3) git -C "$root" update-ref -d "$kept" 2> /dev/null || true ;; esac
  if [ -n "$delete_after" ]; then delete; else say "$name still costs: $script delete $name"; fi
  exit "$1"
}

relaunch() {
  local state last='' status failures=0 started=$SECONDS unreachable='' was_active=''
  local todo=look # look: check what runs; watch: wait for the run; begin: install and start it
  local kept commit installed
  check_options
  choose_commit_of_run "$@"
  while true; do
    state=$(slice_state)
    [ "$state" = "$last" ] || say "$name is $state"
    last=$state
    case $state.$was_active in
      ACTIVE.*) was_active=1 ;;
      WAITING_FOR_RESOURCES.1) # its machines were deleted, as at the end of their time
        delete || sleep "$pause"
        was_active=''
        continue
        ;;
      MISSING.*)
        was_active=''
        status=0
        request 2> "$errors" || status=1
        cat "$errors" >&2
        if [ "$status" = 1 ]; then
          grep -qE "$transient" "$errors" || count_failure "the request for $name was refused"
          sleep "$pause"
        fi
        todo=look
        continue
        ;;
      CREATING.* | ACCEPTED.* | WAITING_FOR_RESOURCES.* | PROVISIONING.* | UNKNOWN.*)
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
      look.running)
        say "the run is going on" && todo=watch
        installed=$(commit_of "$(kept_as installed)")
        if [ -n "$installed" ] && [ -z "$asked_commit$(commit_of "$kept")" ]; then
          commit=$installed
        fi
        keep_commit "$kept"
        ;;
      look.other) fail "$name runs something else: end it with $script stop $name" ;;
      watch.running) sleep "$pause" ;;
      watch.0) say "the run is done" && end 0 ;;
      watch.2) say "bad input or configuration, as $script follow $name shows" && end 2 ;;
      watch.3) say "the run diverged, and would again: see $script follow $name" && end 3 ;;
      watch.stopped) say "the run was stopped by $script stop $name" && end 143 ;;
      *)
        case $todo.$status in
          look.* | begin.*) todo=begin ;;
          *.lost | *.143) ;;
          *) count_failure "the run ended with status $status" ;;
        esac
        say "starting the run with commit ${commit:0:10}"
        keep_commit "$kept"
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
  local kept commit
  check_options
  choose_commit_of_run "$@"
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

# Does what the command line asks for.
run_verb() {
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
    follow) follow ;;
    status) describe && ssh_to all "$(on_host status)" ;;
    stop) ssh_to all "$(on_host stop)" ;;
    install) choose_commit && install ;;
    *) "$verb" ;;
  esac
}
