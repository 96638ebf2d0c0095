"""Fused embedding lookups for stock TensorFlow: ops, feature columns and a graph rewriter.

Importing this package registers its ops with TensorFlow, its columns and its layers with those who
read them from files, and does nothing else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from fusion import installation, starting
from fusion.lazy import lazy_names
from fusion.version import __version__ as __version__

if TYPE_CHECKING:
    from fusion import data, distribute, feature_column, keras, ops, optimizers, tables
    from fusion.explanation import explain
    from fusion.lookup import (
        fused_embedding_lookup_sparse,
        fused_embedding_lookup_sparse_v2,
        fused_safe_embedding_lookup_sparse,
        lookup_sparse,
        slots_lookup,
        slots_lookup_coo,
        slots_lookup_csr,
        slots_to_coo,
        slots_to_csr,
    )
    from fusion.running.functions import fuse_function
    from fusion.running.graphs import fuse_graph
    from fusion.running.grappler import disable, enable, fused, stats
    from fusion.saved_model import (
        build_ops,
        fuse_saved_model,
        join_saved_model,
        saved_model_load,
        split_saved_model,
    )
    from fusion.tables import EmbeddingVariable, get_embedding_variable

__all__ = [
    "EmbeddingVariable",
    "build_ops",
    "data",
    "disable",
    "distribute",
    "enable",
    "explain",
    "feature_column",
    "fuse_function",
    "fuse_graph",
    "fuse_saved_model",
    "fused",
    "fused_embedding_lookup_sparse",
    "fused_embedding_lookup_sparse_v2",
    "fused_safe_embedding_lookup_sparse",
    "get_embedding_variable",
    "join_saved_model",
    "keras",
    "lookup_sparse",
    "ops",
    "optimizers",
    "saved_model_load",
    "slots_lookup",
    "slots_lookup_coo",
    "slots_lookup_csr",
    "slots_to_coo",
    "slots_to_csr",
    "split_saved_model",
    "stats",
    "tables",
]

#: The modules of public names.
_MODULES = {
    "EmbeddingVariable": "fusion.tables",
    "build_ops": "fusion.saved_model",
    "data": "fusion.data",
    "disable": "fusion.running.grappler",
    "distribute": "fusion.distribute",
    "enable": "fusion.running.grappler",
    "explain": "fusion.explanation",
    "feature_column": "fusion.feature_column",
    "fuse_function": "fusion.running.functions",
    "fuse_graph": "fusion.running.graphs",
    "fuse_saved_model": "fusion.saved_model",
    "fused": "fusion.running.grappler",
    "fused_embedding_lookup_sparse": "fusion.lookup",
    "fused_embedding_lookup_sparse_v2": "fusion.lookup",
    "fused_safe_embedding_lookup_sparse": "fusion.lookup",
    "get_embedding_variable": "fusion.tables",
    "join_saved_model": "fusion.saved_model",
    "keras": "fusion.keras",
    "lookup_sparse": "fusion.lookup",
    "ops": "fusion.ops",
    "optimizers": "fusion.optimizers",
    "saved_model_load": "fusion.saved_model",
    "slots_lookup": "fusion.lookup",
    "slots_lookup_coo": "fusion.lookup",
    "slots_lookup_csr": "fusion.lookup",
    "slots_to_coo": "fusion.lookup",
    "slots_to_csr": "fusion.lookup",
    "split_saved_model": "fusion.saved_model",
    "stats": "fusion.running.grappler",
    "tables": "fusion.tables",
}

__getattr__ = lazy_names(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})


def register() -> None:
    """Imports TensorFlow, and registers ops, columns and layers."""
    installation.require()
    for name in ("feature_column", "keras", "ops.registered", "tables.deeprec"):
        importlib.import_module(f"fusion.{name}")
    from fusion.runtime.tensorflow.forks import warn_children
    from fusion.tables.keyed_variables import make_keyed
    from fusion.tables.saved_models import load_on_cpu, save_loaded_again

    warn_children()
    load_on_cpu()
    save_loaded_again(make_keyed)


if not starting.is_command():  # a command does it when its arguments are right
    register()
