"""python -m drtk, so that torchrun can start a command."""

from drtk.cli.main import run

if __name__ == "__main__":
    run()
