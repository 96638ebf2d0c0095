"""The command line: `python -m modelzoo.wide_deep train|eval|export|bench`."""

from modelzoo.options import Model
from modelzoo.training.commands import commands
from modelzoo.wide_deep.model import ARCHITECTURE, logits

MODEL = Model("wide_deep", logits, ARCHITECTURE)

if __name__ == "__main__":
    commands(MODEL)(prog_name="python -m modelzoo.wide_deep")
