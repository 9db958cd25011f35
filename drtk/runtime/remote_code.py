"""Permission to run the Python code in model folders (`auto_map` in config.json)."""

import os

TRUST_VARIABLE = "DRTK_TRUST_REMOTE_CODE"  # an environment variable, because worker processes inherit it
TRUST_ADVICE = "read the code, and if you trust it, give `trust_remote_code` (before the command)"


def is_remote_code_trusted() -> bool:
    """Return whether the Python code in model folders may be run; it is not by default."""
    return os.environ.get(TRUST_VARIABLE) == "1"
