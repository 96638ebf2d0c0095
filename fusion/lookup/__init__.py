"""Embedding lookups of sparse ids, built from the fused ops around one stock gather per shard."""

from fusion.lookup.functions import (
    fused_embedding_lookup_sparse,
    fused_embedding_lookup_sparse_v2,
    fused_safe_embedding_lookup_sparse,
    lookup,
)
from fusion.lookup.grouped import Lookup, grouped_lookup, single_lookup, trained_lookup
from fusion.lookup.many import joined_lookups, lookup_sparse
from fusion.lookup.options import VERSIONS, LookupOptions
from fusion.lookup.slots import (
    slots_lookup,
    slots_lookup_coo,
    slots_lookup_csr,
    slots_to_coo,
    slots_to_csr,
)
from fusion.lookup.stock import stock_lookup

__all__ = [
    "VERSIONS",
    "Lookup",
    "LookupOptions",
    "fused_embedding_lookup_sparse",
    "fused_embedding_lookup_sparse_v2",
    "fused_safe_embedding_lookup_sparse",
    "grouped_lookup",
    "joined_lookups",
    "lookup",
    "lookup_sparse",
    "single_lookup",
    "slots_lookup",
    "slots_lookup_coo",
    "slots_lookup_csr",
    "slots_to_coo",
    "slots_to_csr",
    "stock_lookup",
    "trained_lookup",
]
