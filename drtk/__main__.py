"""Entry point of the command drtk and of python -m drtk."""

import gc
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
    gc.set_threshold(
        100_000
    )  # records are millions of small objects without cycles; by default, garbage collection takes a fifth of mining
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit_on_interrupt)
    from drtk.cli.main import run

    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, before)
    run()


if __name__ == "__main__":
    main()
