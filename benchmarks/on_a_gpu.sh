#!/bin/sh
# Check and measure drtk's GPU paths in at most 10 minutes, without a network. Arguments are passed to on_a_gpu.py:
#
#   benchmarks/on_a_gpu.sh [CORPUS] [--toy] [--steps NAME ...] [--out PREFIX] [--work DIR]
#
# Wheels in the folder `wheels` beside this script are installed into a temporary folder (docs/benchmarks.md). DRTK_PYTHON
# names the Python to use, which must have torch.
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
paths=$root${PYTHONPATH:+:$PYTHONPATH}
if ls "$here"/wheels/*.whl >/dev/null 2>&1; then
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" "$here"/wheels/*.whl
    paths=$site:$paths
fi
cd "$root"
PYTHONPATH=$paths HF_HUB_OFFLINE=1 "$python" "$here/on_a_gpu.py" "$@"
