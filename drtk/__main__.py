"""Entry point of the command drtk and of python -m drtk."""

import gc
import signal


def main() -> None:
    """Run the command line."""
    gc.set_threshold(
        100_000
    )  # records are millions of small objects without cycles; by default, garbage collection takes a fifth of mining
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during the imports ends the process at once
    from drtk.cli.main import run

    signal.signal(signal.SIGINT, before)
    run()


if __name__ == "__main__":
    main()
