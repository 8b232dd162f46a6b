# shellcheck shell=bash
# Sourced by the other scripts. Makes .venv with the pinned requirements if it is missing or out of
# date, and activates it. Needs only Python 3.11, 3.12 or 3.13.
#
# jax is installed for what the machine has: a TPU, an NVIDIA GPU, or the CPU.
# BERT_JAX_PLATFORM=cpu|tpu|cuda chooses; PYTHON=/path/to/python chooses the interpreter.
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

platform=${BERT_JAX_PLATFORM:-$(bash launch/platform.sh)}
case $platform in
  cpu)
    extra=()
    # Huge pages for malloc, because XLA on CPUs allocates and frees its buffers at every step.
    export GLIBC_TUNABLES=${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}
    ;;
  tpu | cuda) extra=(-e ".[$platform]") ;;
  *)
    echo "error: BERT_JAX_PLATFORM=$platform: choose cpu, tpu or cuda" >&2
    exit 2
    ;;
esac
wanted=$(echo "# for $platform" && cat requirements.txt)
if [ "$wanted" != "$(cat .venv/installed-requirements.txt 2> /dev/null)" ]; then
  python=${PYTHON:-}
  for candidate in python3.11 python3.12 python3.13 python3; do
    # Asked for its version, because a version manager may answer to names it has no Python for.
    [ -n "$python" ] || ! "$candidate" -c '' 2> /dev/null || python=$candidate
  done
  version=$("$python" -c 'import sys; print(*sys.version_info[:2], sep=".")' 2> /dev/null || true)
  case $version in
    3.11 | 3.12 | 3.13) ;;
    *)
      echo "error: ${python:-python3} is Python ${version:-that does not start}, and the pinned" \
        "requirements are for 3.11, 3.12 and 3.13: set PYTHON=/path/to/python3.13" >&2
      exit 2
      ;;
  esac
  echo "installing requirements for $platform into .venv (once, a few minutes) ..."
  [ -x .venv/bin/python ] || "$python" -m venv .venv
  # uv takes half a minute and pip three, but uv does not read pip's settings (an index, say).
  # Bytecode, as pip writes it: without, the first start of a run takes five seconds more, and so does
  # every start where PYTHONDONTWRITEBYTECODE is set.
  uv pip install --quiet --compile-bytecode --python=.venv/bin/python -r requirements.txt \
    "${extra[@]+"${extra[@]}"}" 2> /dev/null ||
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt \
      "${extra[@]+"${extra[@]}"}"
  echo "$wanted" > .venv/installed-requirements.txt
fi
# shellcheck disable=SC1091
. .venv/bin/activate
# What `pytest -n auto` starts: three keep two cores busy, because tests wait for the programs that
# they start. A worker of the tests takes up to 3 GB.
export PYTEST_XDIST_AUTO_NUM_WORKERS=${PYTEST_XDIST_AUTO_NUM_WORKERS:-3}
unset platform extra wanted python candidate version
