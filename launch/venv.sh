# shellcheck shell=bash
# Sourced by the other scripts. Makes .venv with the pinned requirements if it is missing or out of
# date, and activates it. Needs only Python 3.11, 3.12 or 3.13.
#
# jax is installed for what the machine has: a TPU, an NVIDIA GPU, or the CPU.
# BERT_JAX_PLATFORM=cpu|tpu|cuda chooses; PYTHON=/path/to/python chooses the interpreter.
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

_bert_jax_platform() {
  local device vendor id
  for device in /sys/bus/pci/devices/*; do
    { read -r vendor < "$device/vendor" && read -r id < "$device/device"; } 2> /dev/null || continue
    # Google's PCI devices: these numbers are TPUs (v2 to 7x), others are network cards.
    case $vendor:$id in
      0x1ae0:0x0027 | 0x1ae0:0x005[6e] | 0x1ae0:0x006[23f] | 0x1ae0:0x0076) echo tpu && return ;;
    esac
  done
  if [ -e /dev/accel0 ]; then
    echo tpu
  elif [ -e /dev/nvidia0 ] || nvidia-smi -L > /dev/null 2>&1; then
    echo cuda
  else
    echo cpu
  fi
}

platform=${BERT_JAX_PLATFORM:-$(_bert_jax_platform)}
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
  uv pip install --quiet --python=.venv/bin/python -r requirements.txt \
    "${extra[@]+"${extra[@]}"}" 2> /dev/null ||
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt \
      "${extra[@]+"${extra[@]}"}"
  echo "$wanted" > .venv/installed-requirements.txt
fi
# shellcheck disable=SC1091
. .venv/bin/activate
unset platform extra wanted python candidate version
