"""`python -m modelzoo.train` with few features, as `python -m tests.modelzoo.command`."""

from modelzoo import train
from tests.modelzoo.small import few_features

if __name__ == "__main__":
    with few_features():
        train.main()
