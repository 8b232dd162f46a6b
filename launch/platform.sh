#!/usr/bin/env bash
# Prints what jax computes on here: tpu, cuda or cpu. Needs nothing installed.
# Usage: launch/platform.sh [ROOT]; ROOT is a folder in place of / (for tests).
set -euo pipefail

root=${1:-}
# Google's PCI devices that are TPUs (v2 to 8), as in bert_jax/runtime/accelerators.py; others are
# network cards.
google=0x1ae0
tpus=' 0x0027 0x0056 0x005e 0x0062 0x0063 0x006f 0x0076 0x007c 0x0083 '
for device in "$root"/sys/bus/pci/devices/*; do
  { read -r vendor < "$device/vendor" && read -r id < "$device/device"; } 2> /dev/null || continue
  if [ "$vendor" = "$google" ] && [[ $tpus == *" $id "* ]]; then
    echo tpu
    exit
  fi
done
if [ -e "$root/dev/accel0" ]; then
  echo tpu
elif [ -e "$root/dev/nvidia0" ] || nvidia-smi -L > /dev/null 2>&1; then
  echo cuda
else
  echo cpu
fi
