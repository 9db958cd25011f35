"""One Ray cluster for the tests of runners."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package")
def ray() -> Iterator[object]:
    """A cluster of this machine alone; workers find the modules of the tests by the path of this process."""
    found = pytest.importorskip("ray")
    paths = os.pathsep.join(path for path in sys.path if path)
    found.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": paths}},
    )
    yield found
    found.shutdown()
