"""Where the program begins, also as python -m drtk, so that torchrun can start a command."""

import contextlib
import os
from typing import NoReturn


def main() -> NoReturn:
    """`drtk.cli.main.run`; Ctrl-C is told in a line while the commands are being loaded, too."""
    try:
        from drtk.cli.main import run
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            os.write(2, b"drtk: interrupted\n")
        os._exit(130)
    run()


if __name__ == "__main__":
    main()
