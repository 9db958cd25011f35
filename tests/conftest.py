"""Settings of all tests: no network, one thread per process, private caches."""

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from drtk.runtime.progress import set_verbosity
from drtk.runtime.run_ray import keep_fault_handlers

# Before any test module is imported: transformers, datasets and OpenMP read these at import.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["MPLBACKEND"] = "Agg"
os.environ["COLUMNS"] = "100"  # the width of help and tables does not depend on the terminal
os.environ["NO_COLOR"] = "1"
# The models are tiny, so more threads only make them slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
if os.environ.get("ATEN_CPU_CAPABILITY") in ("avx2", "default"):
    # torch's attention in bfloat16 asks oneDNN, not ATen, whether there is AVX-512, and fails if the two disagree.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")
# By default hypothesis fails slow tests.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job that a script started with `&`; Ctrl-C is tested
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)  # after the selection by -m
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` if there is no CUDA device. torch is imported only if such a test is selected."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(autouse=True, scope="session")
def _no_fsync() -> None:
    """Skip fsync: no test simulates a power failure, and flushing takes time."""
    os.fsync = lambda handle: None


@pytest.fixture(autouse=True, scope="session")
def _private_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Use a temporary cache folder, so that tests do not depend on the user's cache."""
    os.environ["DRTK_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True, scope="session")
def _visible_log() -> None:
    """Let `caplog` receive the messages of commands, which otherwise do not propagate."""
    set_verbosity(quiet=False, verbose=False)
    logging.getLogger("drtk").propagate = True


_frozen = [0]  # modules


@pytest.fixture(autouse=True)
def _freeze_imports() -> None:
    """Exclude imported libraries from garbage collection, which each training runs: with torch's objects it takes 0.2 s."""
    if len(sys.modules) > _frozen[0] + 100:
        gc.collect()
        gc.freeze()
        _frozen[0] = len(sys.modules)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the test in an empty folder, and return it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def ray() -> Iterator[object]:
    """Start a local Ray cluster whose workers can import the modules of the tests."""
    found = pytest.importorskip("ray")
    paths = os.pathsep.join(path for path in sys.path if path)
    with keep_fault_handlers():
        found.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            runtime_env={"env_vars": {"PYTHONPATH": paths}},
        )
    yield found
    found.shutdown()
