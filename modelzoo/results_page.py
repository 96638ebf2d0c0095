"""The page of what `modelzoo.results` has measured, and its plots."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fusion.saved_model.bench.report import END_TO_END, IN_GRAPH, BenchReport
from modelzoo.signatures import EMBEDDINGS, SERVING

MODELS = ("wide_deep", "deepfm", "dlrm")
VARIANTS = ("stock", "v1", "v2", "enable")
STYLES = ("graph", "keras")
#: Steps of training by style and optimizer, and the options of `bench`.
STEPS: dict[str, tuple[str, ...]] = {
    "graph": ("--style", "graph"),
    "keras": ("--style", "keras"),
    "keras-adam": (
        *("--style", "keras", "--optimizer", "adam"),
        *("--variants", "layers,layers-enable"),
    ),
}
BATCHES = (512, 4096)
#: DeepRec's own table, do_fusion="v2" on an A100, whole steps, by batch size.
DEEPREC = {"wide_deep": (1.07, 1.12), "deepfm": (1.29, 1.29), "dlrm": (1.34, 1.31)}
_TITLES = {"wide_deep": "Wide and deep", "deepfm": "DeepFM", "dlrm": "DLRM"}
_COLORS = {"stock": "0.5", "v1": "tab:orange", "v2": "tab:blue", "enable": "tab:green"}
_STYLES_TOLD = {
    "graph": "compat.v1: `input_layer` in a Session",
    "keras": "Keras 3",
    "keras-adam": "Keras 3 with its own Adam",
}
_LAYERS_TOLD = """\
`layers` is Keras's own `Embedding`, `Flatten` and `Concatenate`, which users have, and the base;
`layers-enable` is the same under `fusion.enable()`. The others are columns in
`fusion.feature_column.DenseFeatures`, for which Keras 3 has no layer: `stock` looks single ids up
with few stock ops. Missing ids, 2 % of all, have a row of the tables in stock layers, and none in
columns; the losses of the first step are the same."""


def page(measured: dict[str, Any], folder: Path) -> Iterator[str]:
    """Yields the lines of a page.

    Args:
        measured: what was measured, by model; and of the pipeline.
        folder: where plots go, beside the page.
    """
    one = measured[MODELS[0]]
    yield "# Results of the model zoo"
    yield ""
    yield (
        f"Measured ({_dates(one['dates'])}) with TensorFlow {one['tensorflow']} on "
        f"{one['machine']}, by `python -m modelzoo.results run`; this page is written by "
        "`python -m modelzoo.results report`. Synthetic data, tables of at most 200,000 rows, "
        "LazyAdam."
    )
    for name in STEPS:
        if f"{name} {BATCHES[0]}" in one["steps"]:
            yield from _steps_table(measured, name)
    yield from _inference_table(measured)
    yield from _auc_table(measured)
    yield from _pipeline_table(measured)
    yield "## Plots"
    yield ""
    for plot in _plots(measured, folder):
        yield f"![{plot.stem}]({folder.name}/{plot.name})"
        yield ""


def _dates(dates: dict[str, str]) -> str:
    """What was measured when."""
    return ", ".join(f"{part} on {dates[part]}" for part in sorted(dates))


def _steps_table(measured: dict[str, Any], name: str) -> Iterator[str]:
    yield ""
    yield f"## A step of training, {_STYLES_TOLD[name]}"
    yield ""
    base = next(iter(measured[MODELS[0]]["steps"][f"{name} {BATCHES[0]}"]))
    if base == "layers":
        yield _LAYERS_TOLD.replace("\n", " ")
        yield ""
    yield (
        "Milliseconds of a whole step, samples per second, and the speedup over "
        f"`{base}`: the median of rounds in which the variants took turns in one process, with "
        "least and most. The losses agreed before. DeepRec is what it publishes for "
        "`do_fusion='v2'` on an NVIDIA A100."
    )
    yield ""
    yield "| model | batch | variant | ms | samples/s | speedup | DeepRec |"
    yield "|---|---:|---|---:|---:|---:|---:|"
    for model in MODELS:
        for place, batch in enumerate(BATCHES):
            for variant, found in measured[model]["steps"][f"{name} {batch}"].items():
                low, middle, high = found["speedup"]
                published = f"{DEEPREC[model][place]:.2f}" if variant == "v2" else ""
                speedup = "" if variant == base else f"{middle:.2f} ({low:.2f} to {high:.2f})"
                yield (
                    f"| {_TITLES[model]} | {batch} | {variant} | {found['milliseconds']:.1f} | "
                    f"{found['samples_per_second']:,.0f} | {speedup} | {published} |"
                )


def _inference_table(measured: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield "## Inference of the export, before and after `fusion rewrite`"
    yield ""
    yield (
        "Calls per second of the rewritten export of stock columns over the original's, by `fusion "
        "bench`, one client; of the whole model, and of its signature `embeddings`, which stops "
        "before the dense layers. The milliseconds are those of the whole model in the graph."
    )
    yield ""
    yield (
        "| model | style | batch | embeddings, in the graph | in the graph | end to end | "
        "stock ms | fused ms |"
    )
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    for model in MODELS:
        for style in STYLES:
            found = {
                signature: BenchReport.from_dict(report)
                for signature, report in measured[model]["inference"][style].items()
            }
            for batch in BATCHES:
                whole = {r.way: r for r in found[SERVING].ratios if r.batch == batch}
                (part,) = (
                    r for r in found[EMBEDDINGS].ratios if (r.batch, r.way) == (batch, IN_GRAPH)
                )
                shown = [
                    f"{one.median:.2f} ({one.low:.2f} to {one.high:.2f})"
                    for one in (part, whole[IN_GRAPH], whole[END_TO_END])
                ]
                times = [f"{one:.2f}" for one in _milliseconds(found[SERVING], batch)]
                cells = (_TITLES[model], style, str(batch), *shown, *times)
                yield f"| {' | '.join(cells)} |"


def _auc_table(measured: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield "## AUC of held-out samples"
    yield ""
    yield (
        "After the same steps at batch 512, deterministic; and the seconds of the longest of the "
        "four trainings, from the start of the command to its end."
    )
    yield ""
    yield "| model | style | " + " | ".join(VARIANTS) + " | most apart | steps | seconds |"
    yield "|---|---|" + "---:|" * (len(VARIANTS) + 3)
    for model in MODELS:
        for style in STYLES:
            trained = measured[model]["trainings"][style]
            aucs = [_aucs(trained[variant])[-1][1] for variant in VARIANTS]
            shown = " | ".join(f"{auc:.5f}" for auc in aucs)
            seconds = max(trained[variant]["seconds"] for variant in VARIANTS)
            steps = trained["stock"]["told"][-1]["step"]
            apart = f"{max(aucs) - min(aucs):.1e}"
            yield f"| {_TITLES[model]} | {style} | {shown} | {apart} | {steps} | {seconds:.0f} |"
    yield ""


def _pipeline_table(measured: dict[str, Any]) -> Iterator[str]:
    rates = measured["pipeline"]
    yield "## The input pipeline"
    yield ""
    yield (
        "Samples per second that the pipeline alone gives from Parquet files on all processors, "
        "and those that the quickest training above takes of batches in memory, also as a share of "
        "the former. The trainings for the AUCs read such files as they go, in batches of 512: "
        f"they waited for a batch for {_waiting(measured)} of their time (median, and the most of "
        "any ten steps behind the first hundred)."
    )
    yield ""
    yield "| batch | pipeline | quickest training | share |"
    yield "|---:|---:|---:|---:|"
    for batch in BATCHES:
        low, middle, high = rates[str(batch)]
        used = max(
            one["samples_per_second"]
            for model in MODELS
            for style in STYLES
            for one in measured[model]["steps"][f"{style} {batch}"].values()
        )
        yield (
            f"| {batch} | {middle:,.0f} ({low:,.0f} to {high:,.0f}) | {used:,.0f} | "
            f"{used / middle:.0%} |"
        )
    yield ""


def _waiting(measured: dict[str, Any]) -> str:
    """The share of the time of steps that passes until there is a batch."""
    shares = [
        one["waiting"]
        for model in MODELS
        for trained in measured[model]["trainings"].values()
        for variant in trained.values()
        for one in variant["told"]
        if "waiting" in one and one["step"] > 100
    ]
    return f"{statistics.median(shares):.1%} ({max(shares):.0%})"


def _aucs(trained: dict[str, Any]) -> list[tuple[int, float]]:
    """The steps and the AUCs of held-out samples."""
    return [(one["step"], one["eval_auc"]) for one in trained["told"] if "eval_auc" in one]


def _plots(measured: dict[str, Any], folder: Path) -> Iterator[Path]:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "fusion"
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(MODELS), figsize=(12, 3.4), sharey=True)
    for axis, model in zip(axes, MODELS, strict=True):
        for variant in VARIANTS:
            axis.plot(
                *zip(*_aucs(measured[model]["trainings"]["graph"][variant]), strict=True),
                label=variant,
                color=_COLORS[variant],
                linewidth=1 + 2 * (VARIANTS[::-1].index(variant)),
                alpha=0.7,
            )
        axis.set(title=_TITLES[model], xlabel="step")
    axes[0].set_ylabel("held-out AUC")
    axes[-1].legend()
    yield _saved(figure, folder / "learning.svg")
    figure, axes = plt.subplots(1, len(BATCHES), figsize=(9, 3.4), sharey=True)
    for axis, batch in zip(axes, BATCHES, strict=True):
        for shift, variant in enumerate(VARIANTS[1:]):
            bars = [
                measured[model]["steps"][f"graph {batch}"][variant]["speedup"] for model in MODELS
            ]
            middle = [one[1] for one in bars]
            errors = [[one[1] - one[0] for one in bars], [one[2] - one[1] for one in bars]]
            places = [place + 0.27 * (shift - 1) for place in range(len(MODELS))]
            axis.bar(places, middle, 0.25, yerr=errors, label=variant, color=_COLORS[variant])
        axis.axhline(1, color="0.5")
        axis.set_xticks(range(len(MODELS)), [_TITLES[model] for model in MODELS])
        axis.set_title(f"batch {batch}")
    axes[0].set_ylabel("steps per second over stock's")
    axes[-1].legend()
    yield _saved(figure, folder / "speedup.svg")


def _saved(figure: Any, path: Path) -> Path:
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    return path


def _milliseconds(report: BenchReport, batch: int) -> list[float]:
    """Medians of a call in the graph, the original's and the rewritten model's."""
    return [one.p50_ms for one in report.measurements if (one.way, one.batch) == (IN_GRAPH, batch)]
