"""`python -m fusion.cli`, as `python -m fusion`."""

from fusion.cli.start import start

if __name__ == "__main__":
    start()
