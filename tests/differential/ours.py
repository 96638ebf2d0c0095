"""The lookups under test: of each version of the fused ops, and of the pass."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

import fusion
from tests.differential import rewritten
from tests.differential.case import Case
from tests.differential.run import like

#: The plain lookup of each version, and what it calls the pruning.
_PLAIN = {
    "v1": ("fused_embedding_lookup_sparse", "prune_invalid_ids"),
    "v2": ("fused_embedding_lookup_sparse_v2", "prune"),
}


def lookup(case: Case, table: Any, ids: Any, weights: Any) -> tf.Tensor:
    """The lookup that a case describes."""
    if case.is_rewritten:
        return rewritten.lookup(case, table, ids, weights)
    if weights is not None:
        weights = _weights(case, ids, weights)
    options: dict[str, Any] = {
        "partition_strategy": case.strategy,
        "combiner": case.combiner,
        "max_norm": case.max_norm,
        "default_id": case.default_id,
    }
    if case.function == "safe":
        return fusion.fused_safe_embedding_lookup_sparse(
            table, ids, weights, prune=case.prune, fusion_version=case.version, **options
        )
    name, prune = _PLAIN[case.version]
    options |= {prune: case.prune, "fill_empty_row": case.fill}
    return getattr(fusion, name)(table, ids, weights, **options)


def _weights(case: Case, ids: Any, weights: Any) -> Any:
    """Weights of the case's kind; they pair with ids by position, whatever the kind of those."""
    if case.weights == case.ids:
        return like(ids, weights)
    if case.weights == "sparse":
        return ids.with_values(weights).to_sparse()
    if case.weights == "ragged":
        return tf.RaggedTensor.from_row_lengths(weights, tf.size(weights, tf.int64)[None])
    return weights
