"""The command line: `python -m modelzoo.dlrm train|eval|export|bench`."""

from modelzoo.dlrm.model import ARCHITECTURE, logits
from modelzoo.options import Model
from modelzoo.training.commands import commands

MODEL = Model("dlrm", logits, ARCHITECTURE)

if __name__ == "__main__":
    commands(MODEL)(prog_name="python -m modelzoo.dlrm")
