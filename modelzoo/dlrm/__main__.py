"""The command line: `python -m modelzoo.dlrm train|eval|export|bench`."""

from modelzoo.dlrm.model import ARCHITECTURE, logits
from modelzoo.options import Model
from modelzoo.training.commands import commands

if __name__ == "__main__":
    commands(Model("dlrm", logits, ARCHITECTURE))(prog_name="python -m modelzoo.dlrm")
