"""Startup of the program."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import signal
import sys
class Interrupt:  # Ctrl-C while the commands are being loaded
    def find_spec(self, name, *_):
        if name == "drtk.cli.main":
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:  # as extension modules do
                raise ImportError("numpy._core.multiarray failed to import") from None
sys.meta_path.insert(0, Interrupt())
from drtk.__main__ import main
main()
"""


def test_ctrl_c_while_the_commands_are_being_loaded_is_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "drtk: interrupted\n")
