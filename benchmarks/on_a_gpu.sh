#!/bin/sh
# Prove and measure drtk's GPU paths in at most 10 minutes, without a network. Arguments are passed to on_a_gpu.py:
#
#   benchmarks/on_a_gpu.sh [CORPUS] [--toy] [--steps NAME ...] [--out PREFIX]
#
# Wheels in the folder `wheels` beside this script are installed first. DRTK_PYTHON names the Python to use.
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
root=$(dirname "$here")
python=
for candidate in "${DRTK_PYTHON:-}" "${DRTK_VENV:-$root/.venv}/bin/python" python3 python; do
    if [ -n "$candidate" ] && "$candidate" -c 'import torch' >/dev/null 2>&1; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "on_a_gpu.sh: no Python with torch found; set DRTK_PYTHON" >&2
    exit 1
fi
if ls "$here"/wheels/*.whl >/dev/null 2>&1; then
    "$python" -m pip install --quiet --no-index --no-deps "$here"/wheels/*.whl
fi
cd "$root"
PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} HF_HUB_OFFLINE=1 exec "$python" "$here/on_a_gpu.py" "$@"
