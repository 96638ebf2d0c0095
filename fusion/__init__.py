"""Fused embedding lookups for stock TensorFlow: ops, feature columns and a graph rewriter.

Importing this package registers its ops with TensorFlow, its columns and its layers with those who
read them from files, and does nothing else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fusion import installation

installation.require()

from fusion import feature_column, keras, ops, tables
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
from fusion.tables import EmbeddingVariable, get_embedding_variable
from fusion.version import __version__ as __version__

if TYPE_CHECKING:
    from fusion import data, distribute, optimizers
    from fusion.explanation import explain
    from fusion.functions import fuse_function
    from fusion.graphs import fuse_graph
    from fusion.grappler import disable, enable, fused, stats
    from fusion.saved_model import (
        build_ops,
        fuse_saved_model,
        join_saved_model,
        saved_model_load,
        split_saved_model,
    )

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

#: Public names that cost something to import, and where they live.
_LAZY: dict[str, tuple[str, str | None]] = {
    "build_ops": ("fusion.saved_model", "build_ops"),
    "data": ("fusion.data", None),
    "disable": ("fusion.grappler", "disable"),
    "distribute": ("fusion.distribute", None),
    "enable": ("fusion.grappler", "enable"),
    "fused": ("fusion.grappler", "fused"),
    "optimizers": ("fusion.optimizers", None),
    "stats": ("fusion.grappler", "stats"),
    "explain": ("fusion.explanation", "explain"),
    "fuse_function": ("fusion.functions", "fuse_function"),
    "fuse_graph": ("fusion.graphs", "fuse_graph"),
    "fuse_saved_model": ("fusion.saved_model", "fuse_saved_model"),
    "join_saved_model": ("fusion.saved_model", "join_saved_model"),
    "saved_model_load": ("fusion.saved_model", "saved_model_load"),
    "split_saved_model": ("fusion.saved_model", "split_saved_model"),
}


def __getattr__(name: str) -> Any:
    try:
        module_name, attribute = _LAZY[name]
    except KeyError:
        raise AttributeError(f"module 'fusion' has no attribute {name!r}") from None
    module = importlib.import_module(module_name)
    return module if attribute is None else getattr(module, attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
