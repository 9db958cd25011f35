"""Where the program begins, also as python -m drtk, so that torchrun can start a command."""

import os
import signal


def _quit(*_: object) -> None:
    """Exit from the signal handler: an exception raised in an import may arrive as another one, or not at all."""
    try:
        os.write(2, b"drtk: interrupted\n")
    finally:
        os._exit(130)


def main() -> None:
    """Run `drtk.cli.main.run`; Ctrl-C while the commands are imported is reported in one line."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _quit)
    from drtk.cli.main import run

    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, before)
    run()


if __name__ == "__main__":
    main()
