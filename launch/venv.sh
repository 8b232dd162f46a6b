# Sourced by the other scripts: makes .venv with the pinned requirements where it is missing or
# behind requirements.txt, and activates it. Needs Python 3.11 or newer, nothing else.
# PYTHON=/path/to/python chooses the interpreter.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if ! cmp -s requirements.txt .venv/installed-requirements.txt; then
  python=${PYTHON:-}
  for candidate in python3.11 python3.12 python3.13 python3; do
    [ -n "$python" ] || python=$(command -v "$candidate" || true)
  done
  if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "error: Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11" >&2
    exit 2
  fi
  echo "installing requirements into .venv (once, a few minutes) ..."
  [ -x .venv/bin/python ] || "$python" -m venv .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
  cp requirements.txt .venv/installed-requirements.txt
fi
. .venv/bin/activate
