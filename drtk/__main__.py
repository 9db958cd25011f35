"""Entry point of the program and of python -m drtk."""

import os
import signal


def _exit_on_interrupt(*_: object) -> None:
    """Exit directly: an exception raised here during an import may be lost or replaced by another."""
    try:
        os.write(2, b"drtk: interrupted\n")
    finally:
        os._exit(130)


def main() -> None:
    """Run `drtk.cli.main.run`; Ctrl-C during its imports prints one line."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit_on_interrupt)
    from drtk.cli.main import run

    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, before)
    run()


if __name__ == "__main__":
    main()
