"""Entry point of the command drtk and of python -m drtk."""

import gc


def main() -> None:
    """Run the command line."""
    gc.set_threshold(
        100_000
    )  # records are millions of small objects without cycles; by default, garbage collection takes a fifth of mining
    from drtk.cli.main import run

    run()


if __name__ == "__main__":
    main()
