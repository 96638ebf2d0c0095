"""The command line: `python -m modelzoo.deepfm train|eval|export|bench`."""

from modelzoo.deepfm.model import ARCHITECTURE, logits
from modelzoo.options import Model
from modelzoo.training.commands import commands

MODEL = Model("deepfm", logits, ARCHITECTURE)

if __name__ == "__main__":
    commands(MODEL)(prog_name="python -m modelzoo.deepfm")
