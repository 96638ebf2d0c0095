"""`python -m fusion`: the `fusion` command without its script."""

from fusion.cli.start import start

if __name__ == "__main__":
    start()
