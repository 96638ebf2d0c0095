"""The layers of the package: a module imports from what stands above it here, never from below."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FAMILIES = ("bags", "columns", "tables", "stores", "updates", "ids", "examples")

#: The parts of a family of ops; not each has all of them.
FAMILY = (
    *("cpu_kernels", "gpu_kernels", "gpu_steps", "cpu", "gpu", "stock", "gradients", "store_names"),
    *("builders", "slots", "attr_errors", "specs"),
)

#: For each package its parts, the lowest layer first; a part is a module or a package.
LAYERS: dict[str, tuple[str, ...]] = {
    "fusion": (
        *("lazy", "starting", "version", "installation", "printable", "arguments"),
        *("data", "runtime", "schema"),
        *("cpu_ops", "gpu_ops", "ops", "ops_library", "passes"),
        *("tables", "stores"),
        *(
            "distribute",
            "lookup",
            "optimizers",
            "feature_column",
            "keras",
            "running",
            "saved_model",
        ),
        *("explanation", "cli", "__main__"),
    ),
    "fusion.runtime": (
        *("process", "machine", "layout", "records", "llvm", "cache", "tensorflow"),
        *("native", "limits", "upcalls", "threads", "cuda", "registration", "optimizer", "doctor"),
    ),
    "fusion.running": (
        *("imported", "graphs", "functions", "compiled", "process_stats", "grappler", "optimized"),
    ),
    "fusion.saved_model": (
        *(
            "root_cause",
            "errors",
            "child",
            "model",
            "table_files",
            "flat",
            "inputs",
            "verify",
            "bench",
        ),
        *("requests", "rewriting", "loading", "split"),
    ),
    "fusion.saved_model.model": (
        *("meta_graph", "fingerprint", "copies", "frozen", "other_formats", "source"),
        "staging",
    ),
    "fusion.saved_model.rewriting": (
        *("embedding_variables", "graphs", "options", "stored_tables"),
        *("manifest", "verification", "models"),
    ),
    "fusion.data": (
        *("partitions", "files", "schema", "columns", "plan", "batches", "reader", "opening"),
        *("loader", "statistics", "validater"),
    ),
    "fusion.gpu_ops": ("layout", "language", "kernels", "steps", "host"),
    "fusion.ops": (
        *("base", "tables", "bags", "columns", "stores", "updates", "ids", "examples"),
        *("stock_definitions", "registered", "node_kernels"),
    ),
    **{f"fusion.ops.{family}": FAMILY for family in FAMILIES},
    "fusion.ops.examples.cpu": (
        *("example_layout", "feature_groups", "example_state", "error_text", "parse_errors"),
        *("calls", "parse_example"),
        *("sequence_layout", "sequence_state", "sequence_errors", "parse_sequence_example"),
    ),
    "fusion.ops.examples.cpu_kernels": (
        *("wire", "lists", "layout", "names", "guesses", "values", "scan", "exact", "tasks"),
        *("sequence_layout", "feature_lists", "sequence_scan", "sequence_tasks"),
    ),
    "fusion.ops.ids.cpu": (
        *("ids_layout", "ids_state", "grouped_ids", "grouped_split", "index_state"),
        "vocabulary_index",
        *("cross_layout", "cross_errors", "cross_state", "grouped_cross"),
    ),
    "fusion.ops.ids.cpu_kernels": (
        *("layout", "words", "fingerprint", "other_hashes", "decimal", "vocabulary", "building"),
        *("tasks", "split_layout", "splitting", "cross_layout", "crossing"),
    ),
    "fusion.ops.columns.cpu": (
        *("layout", "node_columns", "column_checks", "states", "inputs"),
        *("keyed_states", "keyed_variables", "tasks", "slow_path", "lookup_kernel"),
        *("unique_kernel", "gradient_kernel", "keyed_lookup_kernel", "keyed_unique_kernel"),
        *("grouped_gather_layout", "grouped_gather_state", "grouped_gather_kernel"),
    ),
    "fusion.ops.updates.cpu": (
        *("layout", "constants", "code_checks", "states", "variables", "inputs", "tasks"),
        "update_kernel",
    ),
    "fusion.keras": (
        *("tables", "embedding", "bags", "embedding_bag", "keyed", "dynamic_embedding"),
        *("slot_layers", "store_layers", "keras3", "tf_keras", "layers", "acceleration"),
    ),
    "fusion.tables": (
        *("arguments", "frozen", "initial_rows", "files", "graph_order", "eviction", "registry"),
        *("replicas", "saved_models", "checkpoint", "slots", "keyed_rows"),
        *("exchange", "statistics"),
        *(
            "keyed_variables",
            "keras_store",
            "keras_slots",
            "v1_slots",
            "embedding_variable",
            "partitions",
            "partitioned",
            "deeprec",
        ),
    ),
    "fusion.stores": (
        *("tier", "open_file", "hash_index", "local_files", "versions", "versioned_files"),
        *("row_bytes", "rocksdb", "redis", "redis_changes", "hps_json", "config", "counters"),
        *("hot_rows", "fetching", "refresh", "open_stores", "table_store", "addresses", "transfer"),
    ),
    "fusion.distribute": (
        *("tables", "traffic", "placement", "planning"),
        *("exchange", "layout", "initial_rows", "replicas", "saving", "sharded", "rows"),
        *("sharded_table", "sharded_embedding_variable"),
        *("optimizer_states", "sok_files", "row_access", "dumps"),
    ),
    "fusion.ops.tables.cpu_kernels": (
        *("layout", "buckets", "rows", "growth", "index", "entries", "gather"),
        *("file_layout", "file_index"),
    ),
    "fusion.passes": (
        *("graph", "analysis", "recognise", "plan", "report", "emit", "choose"),
        *("requests", "merge_parsers", "lookup_pass"),
        *(
            "expand",
            "ungroup",
            "ungroup_ids",
            "ungroup_split",
            "sparse_parts",
            "parse_to_splits",
            "hash_parsed",
            "join_parsed",
            "fuse_parsers",
            "split_texts",
            "group_ids",
        ),
        *("group_crosses", "fuse_lookups"),
        *(
            "lower_lookups",
            "gather_tables",
            "pack_tables",
            "fuse_updates",
            "gather_lookups",
            "targets",
        ),
    ),
    "fusion.passes.graph": (
        *(
            "reach",
            "signatures",
            "calls",
            "tensor",
            "static_shapes",
            "shape_functions",
            "shapes",
            "view",
            "values",
        ),
        "idioms",
        *("networks", "inferred_shapes"),
        *("fused_columns", "liveness", "kernel_names", "edit", "runtime_ops"),
    ),
    "fusion.passes.analysis": (
        *("equal_tensors", "symbolic_shapes", "crossed_sizes", "rearrangements", "index_grids"),
        *("expressions", "value_ranges"),
        *(
            "results",
            "order",
            "handles",
            "static_tables",
            "variables",
            "stock_bits",
            "ranks_by_use",
        ),
        "rows",
    ),
    "fusion.passes.analysis.rows": (
        *("counts", "facts", "elementwise", "operands", "row_masks", "rules", "sizes", "widths"),
        *("bodies", "control", "walk"),
    ),
    "fusion.passes.requests": (
        *("bags", "partitions", "bits", "parsers", "writer", "example_lists", "fillers"),
        *("row_symbols",),
        *("values", "new_graph", "meetings", "split"),
    ),
    "fusion.saved_model.requests": (
        *("captures", "functions", "objects", "signatures", "request_signatures", "repeats"),
    ),
    "fusion.passes.recognise": (
        *("spec", "match", "bucketize", "matrix_columns", "stock", "fused", "backward"),
        *("control_dependencies", "parts", "lookup_match", "forward_only", "lookup", "updates"),
        *("parsing", "hashing", "splitting", "crossing", "vocabularies"),
    ),
    "fusion.passes.recognise.stock": (
        *("encodings", "boolean_mask", "max_norm", "partition", "ragged"),
        *("reduction", "grappler_forms", "table", "products", "entries", "prune", "id_source"),
        *("output", "one_id_per_row", "gathers", "masks", "quotients", "rows"),
        *("axis_sums", "padded_sums", "ragged_sums"),
    ),
    "fusion.passes.recognise.updates": (
        *("division", "ids", "slices", "expressions", "writes", "components", "program"),
        "table_update",
    ),
    "fusion.passes.plan": (
        "plan",
        "sizes",
        "safety",
        "forms",
        "joins",
        "concats",
        "stacks",
        "trained",
        "training_step",
        "planner",
    ),
}

#: Kernels, and what they have in common.
KERNELS = re.compile(
    r"fusion\.(cpu_ops|gpu_ops\.(layout|language|kernels|steps)|ops\.\w+\.(cpu_kernels|gpu_kernels|gpu_steps))\b"
)

#: What kernels may import besides: they know nothing of TensorFlow but its numbers of dtypes.
BELOW_KERNELS = re.compile(
    r"fusion\.(schema|runtime\.(layout|native|threads|cuda\.layout|cache\.processor|tensorflow\.dtypes))\b"
)

#: No folder has more modules.
MAX_MODULES = 22

#: Those that nothing of a package may load.
APART = {"fusion.passes": "fusion.ops.registered", "fusion.runtime": "fusion.schema"}


def modules(package: str) -> dict[str, Path]:
    """The modules of a package by name, its own `__init__` too."""
    found = {}
    for path in sorted(ROOT.joinpath(*package.split(".")).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


ALL = modules("fusion")


@cache
def imports(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """The import statements of a module, anywhere in it."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return tuple(node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))


def imported(path: Path) -> Iterator[str]:
    """The modules of the package that a module imports, anywhere in it."""
    for node in imports(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in ALL)
        elif node.module in ALL:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in ALL else node.module


def part_of(module: str, package: str) -> str:
    """The part of a package that a module is in, "" for none and the package itself."""
    inside = module.startswith(f"{package}.")
    return module.removeprefix(f"{package}.").partition(".")[0] if inside else ""


@pytest.mark.parametrize("package", LAYERS)
def test_every_part_has_a_layer(package: str) -> None:
    parts = {part_of(module, package) for module in modules(package)} - {""}
    layers = set(LAYERS[package])
    assert parts <= layers if LAYERS[package] is FAMILY else parts == layers


@pytest.mark.parametrize("package", LAYERS)
def test_no_import_goes_up(package: str) -> None:
    layers = LAYERS[package]
    wrong = [
        (module, other)
        for module, path in modules(package).items()
        for other in imported(path)
        if (own := part_of(module, package)) and (theirs := part_of(other, package))
        if layers.index(theirs) > layers.index(own)
    ]
    assert wrong == []


def test_no_circles() -> None:
    """Neither inside of a layer; what a function imports may be loaded by the time it runs."""
    edges = {
        module: {other for other in top_level(path) if other != module}
        for module, path in ALL.items()
    }
    while edges:
        free = {module for module, others in edges.items() if not others & edges.keys()}
        assert free, sorted(edges)
        edges = {module: others for module, others in edges.items() if module not in free}


@cache
def top_level(path: Path) -> frozenset[str]:
    """The modules of the package that a module imports when it is imported itself."""
    tree, found = ast.parse(path.read_text()), set[str]()
    for node in [*ast.walk(tree)]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = []
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in ALL:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(name if name in ALL else node.module)
    return frozenset(found)


def test_kernels_know_nothing_of_tensorflow() -> None:
    wrong = {
        (module, other)
        for module, path in ALL.items()
        if KERNELS.match(module)
        for other in (*imported(path), *foreign(path))
        if not KERNELS.match(other) and not BELOW_KERNELS.match(other)
    }
    assert wrong == set()


def foreign(path: Path) -> Iterator[str]:
    """The names of TensorFlow that a module imports, anywhere in it."""
    for node in imports(path):
        names = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        yield from (name for name in names if name.split(".")[0] in ("tensorflow", "keras"))


@pytest.mark.parametrize("package", APART)
def test_what_is_apart(package: str) -> None:
    loaded, stack = {package}, [*modules(package)]
    while stack:
        module = stack.pop()
        for other in imported(ALL[module]):
            if other not in loaded:
                loaded.add(other)
                stack.append(other)
    apart = APART[package]
    assert [module for module in loaded if f"{module}.".startswith(f"{apart}.")] == []


@pytest.mark.parametrize(
    "module", ["running.grappler", "saved_model.rewriting.models", "saved_model.verify.compare"]
)
def test_networkx_is_for_commands_and_people(module: str) -> None:
    """It takes time and memory of a process that trains, and one that serves need not have it."""
    loaded, stack = set[str](), [f"fusion.{module}"]
    assert stack[0] in ALL
    while stack:
        if (one := stack.pop()) not in loaded:
            loaded.add(one)
            stack.extend(top_level(ALL[one]))
    asking = {name for name, path in ALL.items() if "\nimport networkx" in path.read_text()}
    assert "fusion.passes.graph.networks" in asking
    assert asking & loaded == set()


def test_no_folder_is_crowded() -> None:
    counts: dict[Path, int] = {}
    for path in ALL.values():
        counts[path.parent] = counts.get(path.parent, 0) + (path.stem != "__init__")
    assert {folder: count for folder, count in counts.items() if count > MAX_MODULES} == {}
