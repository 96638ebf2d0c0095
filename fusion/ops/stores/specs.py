"""TableStoreGather: rows of tables of a store, by their keys."""

from __future__ import annotations

from collections.abc import Callable

from fusion.ops.base.bodies import cpu_body
from fusion.ops.stores.cpu.store_layout import StoreConstants
from fusion.ops.stores.store_names import names as store_names
from fusion.runtime.records import Word
from fusion.runtime.tensorflow import variable_access
from fusion.runtime.tensorflow.spec import NOT_DIFFERENTIABLE, Arg, Attr, Builder, OpSpec
from fusion.runtime.tensorflow.variable_access import AccessRequest
from fusion.schema import names

_BUILDER = "build_store_gather_state"


def _constants(spec: OpSpec, device: str, access: Callable[[AccessRequest], Word]) -> list[Word]:
    attrs = [attr.name for attr in spec.attrs]
    words: list[Word] = [0] * StoreConstants.SIZE
    for field, name in (
        (StoreConstants.store, "store"),
        (StoreConstants.num_tables, "num_tables"),
        (StoreConstants.tables, "tables"),
        (StoreConstants.dims, "dims"),
    ):
        words[field] = attrs.index(name)
    # A library is for other processes, and its kernels have no Python to ask.
    if access is variable_access.live_record:
        words[StoreConstants.names] = store_names().address
    return words


SPEC = OpSpec(
    name=names.TABLE_STORE_GATHER,
    doc="Gathers rows of tables of a `fusion.tables.TableStore` by their keys.\n\n"
    "The store must be open in the process, under its name, and have these tables; else it is a\n"
    "FailedPreconditionError. Rows are in its cache, or they are fetched for all tables together,\n"
    "or have the default value: see there. A tier that does not answer is an UnavailableError.",
    inputs=(Arg("keys", "int64", "[...]", length="num_tables"),),
    outputs=(
        Arg("rows", "float32", "[..., ?]", length="num_tables", doc="[..., D] of keys [...]"),
    ),
    attrs=(
        Attr("num_tables", "int", minimum=1, doc="number of tables"),
        Attr("tables", "list(string)", doc="their names in the store"),
        Attr("dims", "list(int)", doc="D of each, at least 1"),
        Attr("store", "string", default="default", doc="the name of the store"),
    ),
    kernels={"CPU": cpu_body("stores", "store_kernel")},
    builder=Builder(_BUILDER, "fusion.ops.stores.cpu.store_state", _constants),
    names="tables",
    gradient=NOT_DIFFERENTIABLE,
    # The rows are those of the moment.
    is_stateful=True,
)
