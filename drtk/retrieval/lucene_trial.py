"""Whether a JVM starts, tried in a process of its own: some faults end the process they happen in, without an exception."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

VARIABLES = ("DRTK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JVM_PATH")  # ours, Java's, pyjnius's
LINES = 4  # of what a JVM says; the report of a crash goes on and on
_TRIAL = """
from drtk.errors import DrtkError
from drtk.retrieval.lucene_jvm import launch
try:
    launch()
except (DrtkError, SystemError, OSError) as error:
    raise SystemExit(str(error))
"""


def variables_set() -> list[str]:
    """The names, with their dollar sign, of the variables set here that say how a JVM starts."""
    return [f"${name}" for name in VARIABLES if os.environ.get(name)]


def worth_a_trial() -> bool:
    """Whether something here may make a JVM end the process: a variable of the user's, or a bound on addresses."""
    return bool(variables_set()) or resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def fault_of_trial() -> str | None:
    """What a JVM says, on one line, that does not start in a process of its own; None where it starts.

    It is started as the one of this process would be: with the same Java, jar, options and variables. Takes about a second.
    """
    done = subprocess.run(
        [sys.executable, "-c", _TRIAL],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode == 0:
        return None
    said = [line.strip("# \n.:") for line in (done.stdout + done.stderr).splitlines()]
    # "Picked up" names a variable and what is in it; the caller names it, too
    told = [line for line in said if line and not line.startswith("Picked up ")][:LINES]
    if done.returncode < 0:
        told.append(f"it was ended by signal {-done.returncode}")
    return ": ".join(told) or f"exit status {done.returncode}"
