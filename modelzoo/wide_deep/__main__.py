"""The command line: `python -m modelzoo.wide_deep train|eval|export|bench`."""

from modelzoo.options import Model
from modelzoo.training.commands import commands
from modelzoo.wide_deep.zoo import ARCHITECTURE, logits

if __name__ == "__main__":
    commands(Model("wide_deep", logits, ARCHITECTURE))(prog_name="python -m modelzoo.wide_deep")
