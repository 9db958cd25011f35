"""Real collections for the tests that want them: `../shared/data` beside the checkout, or $DRTK_TEST_DATA."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


def find_shared_data(name: str) -> Path:
    """The folder of the collection `name` ("squad", "cranfield", "trec_eval", …); skips the calling test where it is absent."""
    root = Path(os.environ.get("DRTK_TEST_DATA") or BESIDE)
    folder = root / name
    if not folder.is_dir():
        pytest.skip(
            f"no test data '{name}' in {root}; set DRTK_TEST_DATA to the folder that holds it", allow_module_level=True
        )
    return folder
