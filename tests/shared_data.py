"""Find real collections for tests, in `../shared/data` beside the checkout or in $DRTK_TEST_DATA."""

import os
from pathlib import Path

import pytest

DEFAULT_FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data"


def find_shared_data(name: str) -> Path:
    """Return the folder of a collection ("squad", "cranfield", "trec_eval", …); skip the test if it is missing."""
    root = Path(os.environ.get("DRTK_TEST_DATA") or DEFAULT_FOLDER)
    folder = root / name
    if not folder.is_dir():
        pytest.skip(
            f"no test data '{name}' in {root}; set DRTK_TEST_DATA to the folder that holds it", allow_module_level=True
        )
    return folder
