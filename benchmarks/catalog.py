"""All cases, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.case import Case, Option
from benchmarks.lookups.catalog import WORKLOADS
from benchmarks.lookups.workloads import Workload

SMOKE = ("criteo26", "multihot26", "recom-micro")
"""The headlines that show within three minutes whether they hold: those of lookups alone."""


def _lookups(workload: Workload) -> Case:
    return Case(
        workload.name,
        workload.about,
        "benchmarks.lookups.measure:measure",
        {"scale": 1.0, "headlines": False},
        quick={"small": True},
        fixed={"workload": workload.name, "end_to_end": True, "small": False},
        # Tracing a function for calls with fed tensors takes minutes with 1000 columns.
        later={"end_to_end": False},
        processes=3,
        is_standard=True,
    )


_LEGACY = {"CUDA_VISIBLE_DEVICES": "-1", "TF_USE_LEGACY_KERAS": "1"}
"""The environment of libraries whose Keras is tf_keras."""


def _training(framework: str, name: str, rows: tuple[int, ...]) -> Case:
    options: dict[str, Any] = {
        "optimizer": ("sgd", "adagrad", "adam"),
        "rows": rows,
        "distribution": "uniform",
        "steps": 0,
        "columns": 26,
        "seconds": 15.0,
        "profile": False,
    }
    return Case(
        framework,
        f"Steps of training in {name}: embeddings of dim 16, one id per row, side by side, and "
        "three dense layers of 256 units, batch 512: stock layers and optimizers, as they are and "
        "under `fusion.enable()`, in turns in one process. Losses and all variables, slots "
        "included, are compared after 200 steps, 20 of a million rows.",
        "benchmarks.training.measure:measure",
        options,
        {"small": True, "rows": (10_000,), "seconds": 0.1},
        {"framework": framework, "small": False},
    )


def _clients(name: str, library: str, models: tuple[str, ...], **environment: Any) -> Case:
    return Case(
        name,
        f"Models of {library}, batch 512, with and without `fusion`: calls from Python; in the "
        "graph, net of the inputs, which variables hold; and exported SavedModels, verified, also "
        "by a library of `fusion build-ops` that no kernel was added to for them, and measured in "
        "their graphs, inputs too. Embeddings are what the first dense layers read.",
        "benchmarks.clients.measure:measure",
        {"model": models, "way": ("calls", "graph", "SavedModel"), "seconds": 3.0, "library": ""},
        {"seconds": 0.1},
        processes=3,
        **environment,
    )


#: All of DeepCTR's models but DIEN, which needs graphs of TensorFlow 1; then TFRS's.
_RANKINGS = (
    *("AutoInt", "DCN", "DCNMix", "DeepFEFM", "DeepFM", "DIFM", "ESMM", "FiBiNET", "FNN", "FwFM"),
    *("IFM", "MLR", "MMOE", "NFM", "ONN", "PLE", "PNN", "SharedBottom", "WDL", "xDeepFM"),
    *("AFM", "CCPM", "EDCN", "FGCNN", "FLEN", "DIN", "BST", "DSIN"),
    *("two towers", "Cross", "DotInteraction", "DotInteraction, itself too"),
)


def _rankings(name: str, models: tuple[str, ...], library: str, **environment: Any) -> Case:
    return Case(
        name,
        "Models of client libraries that rank: 20 features of a user and 6 of a candidate, a "
        "history of 50 where the model has one; the user in each row beside the user once, or why "
        "the model is refused. Weights are random numbers. Outputs are compared, also of three "
        "requests in a call.",
        "benchmarks.clients.requests:measure",
        {"model": models, "candidates": 200, "seconds": 2.0},
        {"candidates": 20, "seconds": 0.1},
        {"library": library},
        **environment,
    )


def _cost(name: str, about: str, **numbers: tuple[float, float]) -> Case:
    """A standard case of `benchmarks.costs`, with numbers and those of a small run."""
    whole, small = ({k: pair[place] for k, pair in numbers.items()} for place in (0, 1))
    where = f"benchmarks.costs:{name}"
    return Case(name, about, where, whole, small, processes=3, is_standard=True)


def _own(
    name: str, about: str, options: Mapping[str, Option], quick: Mapping[str, Option], **own: Any
) -> Case:
    """A case that has a module of its name."""
    return Case(name, about, f"benchmarks.{name}:measure", options, quick, **own)


_ALL = (
    *map(_lookups, WORKLOADS.values()),
    _cost(
        "startup",
        "Seconds until the first lookups of 26 columns are done in a new process, kernels "
        "compiled.",
        starts=(5, 1),
    ),
    _cost(
        "memory",
        "Growth of a process's largest memory while lookups in a large table run.",
        mebibytes=(1024, 256),
    ),
    _cost(
        "concurrency",
        "Calls per second of 8 threads together over those of one, multihot26.",
        seconds=(2.0, 0.1),
    ),
    Case(
        "saved-models",
        "Calls per second of rewritten SavedModels over those of the originals, side by side, of "
        "the whole model and of its embeddings alone; see `fusion bench`.",
        "benchmarks.saved_models:measure",
        {
            "model": ("demo", "recom-e tenth"),
            "largest": 4096,
            "seconds": 2.0,
            "cap": 200_000,
            "steps": 30,
        },
        {"largest": 1, "seconds": 0.1, "cap": 2000, "steps": 2},
        processes=3,
        is_standard=True,
    ),
    _own(
        "layers",
        "Lookups of Keras 3's layers, of ragged ids, and products of one-hot ids, in the graph, "
        "net of the ids.",
        {"workload": (*range(14),), "seconds": 4.0, "scale": 1.0},
        {"workload": (0, 6, 10, 12), "seconds": 0.1, "scale": 0.01},
        processes=3,
    ),
    _training("keras", "Keras 3", (10_000, 100_000, 1_000_000)),
    _training("tf_keras", "tf_keras", (100_000,)),
    _training("compat.v1", "a compat.v1 Session", (100_000,)),
    Case(
        "pass",
        "What fusion costs while TensorFlow optimizes graphs.",
        "benchmarks.passes:measure",
        {"columns": 1000, "layers": 6000, "repeats": 7},
        {"columns": 20, "layers": 100, "repeats": 1},
    ),
    _own(
        "latency",
        "26 columns of dimension 16 over tables of 80 MB, 0 to 5 uniform ids per row, batch 64: "
        "p50 and p99 of the calls that begin in each second since a model's first answer, by one "
        "client at a rate, or by several as fast as they can.",
        {
            "clients": (1, 8),
            "side": ("stock", "fusion"),
            "seconds": 12,
            "rate": 200.0,
            "scale": 1.0,
        },
        {"clients": (2,), "seconds": 1, "scale": 0.0001},
    ),
    _own(
        "mapped",
        "A model of 8 tables of dimension 64 that are files, beside the same with variables.",
        {
            "part": ("starts", "warm", "pages"),
            "gigabytes": 8.0,
            "starts": 3,
            "seconds": 10.0,
        },
        {"part": ("starts", "warm"), "gigabytes": 0.05, "starts": 1, "seconds": 0.1},
    ),
    _own(
        "packed",
        "Lookups of 8 columns in one table of packed rows, over those in the float32 table.",
        {"dim": (16, 64, 128), "megabytes": 1024.0, "seconds": 5.0},
        {"dim": (16,), "megabytes": 1.0, "seconds": 0.1},
    ),
    _own(
        "stores",
        "Fetching rows of 13,312 distinct keys, dimension 16, from each tier, alone and below a "
        "cache, beside Redis's MGET.",
        {"rows": 1_000_000, "seconds": 5.0},
        {"rows": 14_000, "seconds": 0.1},
    ),
    Case(
        "table_store",
        "Lookups in a table store, by its op and from Python, beside stock gathers of variables.",
        "benchmarks.stores:gathers",
        {"rows": 20_000, "seconds": 5.0},
        {"rows": 1000, "seconds": 0.1},
    ),
    _own(
        "tables",
        "Embedding variables of dimension 16 against stock's hash tables, and training against a "
        "plain table.",
        {"keys": 10_000_000, "batch": 4096, "seconds": 20.0},
        {"keys": 3000, "batch": 8, "seconds": 0.1},
    ),
    _own(
        "data",
        "Batches of Parquet files by `fusion.data.ParquetLoader`, beside tf.data over pyarrow.",
        {"batch": (512, 65536), "rows": 2_000_000, "seconds": 10.0},
        {"rows": 2000, "seconds": 0.1},
    ),
    _own(
        "examples",
        "Parsing serialized tf.Examples and SequenceExamples, fused ops beside stock's.",
        {
            "workload": (
                *("fixed", "varlen", "ragged", "strings of 8", "strings of 40", "bags of 0 to 5"),
                *("lists of 20", "40 of 200", "fixed, shuffled", "40 of 200, shuffled"),
                *("sequences", "varlen sequences", "ragged sequences"),
            ),
            "batch": (64, 512, 4096),
            "seconds": 4.0,
        },
        {
            "workload": ("fixed", "40 of 200, shuffled", "sequences"),
            "batch": (64,),
            "seconds": 0.1,
        },
        processes=3,
    ),
    _own(
        "records",
        "TFRecords of tf.Examples: tf.data's pipeline alone, and fit of a DeepFM of Keras 3 that "
        "it feeds, as they are and under `fusion.fused()`.",
        {"part": ("pipeline", "fit"), "examples": 60_000, "seconds": 10.0},
        {"examples": 600, "seconds": 0.1},
        processes=3,
    ),
    _own(
        "requests",
        "Models of 20 features of a user and 6 of a candidate, of tensors and of Examples: the "
        "original with a row of the user for each candidate, beside signatures that take it once, "
        "and what of them is left where all that depends on the user alone is a constant. In the "
        "graph, inputs are what variables hold.",
        {
            "model": ("wide and deep", "DeepFM", "DLRM", "two towers", "DIN", "BST"),
            "inputs": ("tensors", "Examples"),
            "target": ("stock", "fused"),
            "candidates": "1,50,200,500",
            "rows": 100_000,
            "seconds": 1.0,
        },
        {
            "model": ("two towers",),
            "target": ("stock",),
            "candidates": "3",
            "rows": 50,
            "seconds": 0.1,
        },
        processes=3,
    ),
    _own(
        "ids",
        "26 exported columns whose ids are hashes of integers, strings and parts of texts, "
        "vocabularies or crosses of two, with their lookups: the original beside the rewritten "
        "model.",
        {
            "kind": ("integers", "strings", "parts", "vocabulary", "cross"),
            "batch": (64, 512, 4096),
            "rows": 100_000,
            "seconds": 4.0,
        },
        {"batch": (64,), "rows": 2000, "seconds": 0.1},
        processes=3,
    ),
    _own(
        "image",
        "A server as in a container: another user, read-only files, no HOME, one processor; "
        "root alone can measure it.",
        {"model": (), "seconds": 10.0},
        {"seconds": 0.5},
        processes=3,
    ),
    _own(
        "quotas",
        "Lookups of 26 columns in one op under CPU quotas, by the number of threads; needs the "
        "right to make control groups.",
        {"quota": (1, 2), "rounds": 20},
        {"quota": (1,), "rounds": 1},
    ),
    Case(
        "scale",
        "What tables that are split by rows send over many replicas: a model, nothing is measured.",
        "benchmarks.scale:measure",
        {
            "replicas": (16, 64, 256, 1024, 4096),
            "batch": 65_536,
            "dimension": 128,
            "alpha": 1.05,
        },
    ),
    _clients(
        "clients",
        "DeepCTR and TFRS",
        ("DeepFM", "WDL", "DCN", "xDeepFM", "DIN", "BST", "ranking", "retrieval"),
        environment=_LEGACY,
    ),
    _clients("clients-keras3", "keras-rs", ("EmbedReduce",)),
    _rankings("clients-requests", _RANKINGS, "", environment=_LEGACY),
    _rankings(
        "clients-requests-keras3",
        ("FeatureCross", "DotInteraction", "DotInteraction, no gather"),
        "keras-rs",
    ),
    Case(
        "clients-fit",
        "Steps of training of models of DeepCTR and TFRS, as `fit` takes them, batch 512; losses "
        "and all variables, slots included, are compared after so many steps.",
        "benchmarks.clients.measure:train",
        {
            "model": ("DeepFM-fit", "DeepFM-fit-without-l2", "ranking-fit"),
            "steps": 50,
            "seconds": 15.0,
        },
        {"steps": 3, "seconds": 0.1},
        environment=_LEGACY,
    ),
    Case(
        "gpu",
        "Bags of many columns on a GPU, checked against float64, the share of a copy's bandwidth "
        "that they have with cold caches, torch, FBGEMM and TensorFlow beside them, where they "
        "are there; needs numba-cuda, and torch or cupy, not TensorFlow. Other names choose "
        "workloads that begin so.",
        "benchmarks.gpu.measure:measure",
        {"workload": ("",), "scale": 1.0, "repeats": 20, "seed": 0},
        {"workload": ("bag, 10 ids, dim 8",), "scale": 0.00005},
        environment={},
    ),
)

CASES = {case.name: case for case in _ALL}
"""All of them."""
