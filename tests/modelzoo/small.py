"""The zoo's models, and how they are trained in a moment."""

from __future__ import annotations

from importlib import import_module

from modelzoo.options import Options

MODELS = {
    name: import_module(f"modelzoo.{name}.__main__").MODEL
    for name in ("wide_deep", "deepfm", "dlrm")
}
SMALL = Options(cap=100, dim=4, batch_size=32, eval_samples=200, steps=12, save_every=5)


class Silent:
    """Watches and says nothing."""

    def stepped(self, step: int, numbers: dict[str, float]) -> None:
        pass

    def evaluated(self, step: int, numbers: dict[str, float]) -> None:
        pass
