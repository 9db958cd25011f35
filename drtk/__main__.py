"""Entry point of the command drtk and of python -m drtk."""

import os
import signal


def _exit_on_interrupt(*_: object) -> None:
    """Exit at once: the module that is being imported might catch or replace a KeyboardInterrupt."""
    try:
        os.write(2, b"drtk: interrupted\n")
    finally:
        os._exit(130)


def main() -> None:
    """Run the command line. Ctrl-C during the imports prints one line instead of a traceback."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit_on_interrupt)
    from drtk.cli.main import run

    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, before)
    run()


if __name__ == "__main__":
    main()
