"""The layers of the package: a module imports from what stands above it here, never from below."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

#: For each package its parts, the lowest layer first; a part is a module or a package.
LAYERS: dict[str, tuple[str, ...]] = {
    "fusion": (
        *("lazy", "starting", "version", "installation", "printable", "arguments"),
        *("data", "runtime", "schema"),
        *("stock_ops", "cpu_ops", "gpu_ops", "ops", "ops_library", "passes"),
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
        *("native", "upcalls", "threads", "cuda", "registration", "optimizer", "doctor"),
    ),
    "fusion.running": (
        *("imported", "graphs", "functions", "compiled", "process_stats", "grappler", "optimized"),
    ),
    "fusion.saved_model": (
        *("root_cause", "errors", "child", "model", "table_files", "inputs", "verify", "bench"),
        *("rewriting", "loading", "split"),
    ),
    "fusion.saved_model.model": (
        *("variables", "meta_graph", "fingerprint", "copies", "frozen", "other_formats", "source"),
        *("staging", "column_views"),
    ),
    "fusion.saved_model.rewriting": (
        *("embedding_variables", "runtimes", "networks", "rewrite_options", "stored_tables"),
        *("manifest", "rewrite"),
    ),
    "fusion.data": (
        *("partitions", "files", "schema", "columns", "plan", "batches", "reader", "opening"),
        *("loader", "statistics", "validater"),
    ),
    "fusion.gpu_ops": ("layout", "language", "kernels", "steps", "host"),
    "fusion.ops": (
        *("shared_args", "second_order", "cpu", "gpu", "row_kernels", "bag_builders"),
        *("v1", "v2", "partition", "read_tables"),
        *("tables", "update", "columns", "node_kernels"),
    ),
    "fusion.ops.cpu.columns": (
        *("kernel_indices", "layout", "given_columns", "column_checks", "states", "inputs"),
        *("keyed_states", "keyed_variables", "tasks", "slow_path", "lookup_kernel"),
        *("unique_kernel", "gradient_kernel", "keyed_lookup_kernel", "keyed_unique_kernel"),
        *("grouped_gather_layout", "grouped_gather_state", "grouped_gather_kernel"),
    ),
    "fusion.ops.cpu.updates": (
        *("layout", "constants", "code_checks", "states", "variables", "inputs", "tasks"),
        "update_kernel",
    ),
    "fusion.keras": (
        *("tables", "embedding", "bags", "embedding_bag", "keyed", "dynamic_embedding"),
        *("sharded", "slot_layers", "store_layers", "keras3", "tf_keras", "layers", "acceleration"),
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
        *("text", "tables", "traffic", "placement", "planning"),
        *("exchange", "layout", "initial_rows", "replicas", "saving", "sharded", "rows"),
        *("sharded_table", "sharded_embedding_variable"),
        *("optimizer_states", "sok_files", "row_access", "dumps"),
    ),
    "fusion.cpu_ops.keys": (
        *("layout", "buckets", "rows", "growth", "index", "entries", "gather"),
        *("file_layout", "file_index"),
    ),
    "fusion.passes": (
        *("graph", "analysis", "recognise", "plan", "report", "emit", "choose", "lookup_pass"),
        *("expand", "ungroup", "fuse_lookups", "lower_lookups", "gather_tables"),
        *("pack_tables", "fuse_updates", "gather_lookups", "targets"),
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
        *("equal_tensors", "symbolic_shapes", "rearrangements", "index_grids", "expressions"),
        "value_ranges",
        *("order", "handles", "variables", "stock_bits", "ranks_by_use"),
    ),
    "fusion.passes.recognise": (
        *("spec", "match", "bucketize", "stock", "fused", "backward", "control_dependencies"),
        *("parts", "lookup_match", "forward_only", "lookup", "updates"),
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

#: No folder has more modules.
MAX_MODULES = 22

#: Those that nothing of a package may load.
APART = {"fusion.passes": "fusion.ops", "fusion.runtime": "fusion.schema"}


def modules(package: str) -> dict[str, Path]:
    """The modules of a package by name, its own `__init__` too."""
    found = {}
    for path in sorted(ROOT.joinpath(*package.split(".")).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


ALL = modules("fusion")


def imported(path: Path) -> Iterator[str]:
    """The modules of the package that a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in ALL)
        elif isinstance(node, ast.ImportFrom) and node.module in ALL:
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
    assert parts == set(LAYERS[package])


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


def top_level(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    for node in [*ast.walk(tree)]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in ALL:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in ALL else node.module


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
    "module", ["running.grappler", "saved_model.rewriting", "saved_model.verify"]
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
