"""`fuse_saved_model`: a SavedModel or a frozen graph in, the same with fused lookups out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.message import Message
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from fusion.passes.graph.calls import reached_functions
from fusion.passes.lower_lookups import remaining_fused_ops
from fusion.passes.report.report import FusionReport, FusionResult
from fusion.passes.targets import Target
from fusion.saved_model.errors import ModelError, graph_errors
from fusion.saved_model.model.copies import Progress, copy_file, copy_files
from fusion.saved_model.model.fingerprint import compute_fingerprint
from fusion.saved_model.model.frozen import write_loadable
from fusion.saved_model.model.meta_graph import (
    apply_pass,
    lookup_pass,
    release_of,
    update_op_list,
    used_ops,
)
from fusion.saved_model.model.source import (
    FINGERPRINT_FILE,
    MANIFEST_FILE,
    MODEL_FILE,
    SourceModel,
    model_files,
    read_saved_model,
)
from fusion.saved_model.model.staging import (
    check_destination,
    staged_directory,
    staged_files,
    write_file,
)
from fusion.saved_model.rewriting.graphs import Reported
from fusion.saved_model.rewriting.manifest import FUSED_RUNTIMES, Runtimes, manifest
from fusion.saved_model.rewriting.options import (
    MIN_TABLE_BYTES,
    TABLE_PLACES,
    CopyObserver,
    Observer,
    RewriteOptions,
    Step,
)
from fusion.saved_model.rewriting.stored_tables import store_tables
from fusion.saved_model.rewriting.verification import tolerance_of, verify_models
from fusion.saved_model.table_files.file_table import FileTable
from fusion.saved_model.table_files.keep import write_tables
from fusion.saved_model.table_files.packed import FLOAT32, PackedTable
from fusion.saved_model.table_files.tensor_bundle import Bundle
from fusion.saved_model.verify import DEFAULT_BATCH_SIZE, DEFAULT_TIMEOUT, Verification
from fusion.saved_model.verify.requests import RequestCheck, recorded_checks
from fusion.schema.names import OP_NAMES
from fusion.schema.op_history import Release

if TYPE_CHECKING:  # asks networkx, which a process that serves need not have
    from fusion.saved_model.requests.repeats import Repeats
    from fusion.saved_model.requests.request_signatures import RequestSignature

_DEFAULTS, _NOBODY = RewriteOptions(), Observer()


@dataclass(frozen=True)
class Rewrite:
    """A finished rewrite.

    Attributes:
        report: what was fused, and why the rest was not.
        verification: the comparison with the source; None if not asked for, or if nothing was
            fused and the model is a plain copy.
        unchecked: functions with fused lookups that no signature runs, so that the verification
            says nothing about them: what else can be called after loading.
        runtimes: the TensorFlow releases that the result loads in; None if they are the source's,
            as nothing was rewritten.
        tables: those that became files.
        packed: those that were to be stored as another dtype than float32, and what became of them.
        requests: the signatures that were added, in which a request has one row.
        repeats: where request inputs were found in recorded ones, what repeats in these.
    """

    report: FusionReport
    verification: Verification | None
    unchecked: tuple[str, ...] = ()
    runtimes: Runtimes | None = None
    tables: tuple[FileTable, ...] = ()
    packed: tuple[PackedTable, ...] = ()
    requests: tuple[RequestSignature, ...] = ()
    repeats: Repeats | None = None


@dataclass(frozen=True)
class _Rewritten:
    """A model that was rewritten in memory.

    Attributes:
        proto: the model.
        done: what was done.
        is_modified: whether anything was.
        bundle: its variables, tables in files among them, if they are not those of the source.
    """

    proto: saved_model_pb2.SavedModel
    done: Rewrite
    is_modified: bool
    bundle: Bundle | None = None


def fuse_saved_model(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    target: str = "fused",
    verify: bool = True,
    timeout: float = DEFAULT_TIMEOUT,
    *,
    outputs: Sequence[str] | None = None,
    link: bool = False,
    progress: Progress | None = None,
    inputs: str | os.PathLike[str] | None = None,
    batch_size: int = DEFAULT_BATCH_SIZE,
    runtime: str | None = None,
    tables: str = TABLE_PLACES[0],
    least_table_bytes: int = MIN_TABLE_BYTES,
    dtype: str = FLOAT32,
    table_dtypes: Mapping[str, str] | None = None,
    max_deviation: float | None = None,
    request_inputs: Sequence[str] | str = (),
    signature: str | None = None,
    exact: bool = False,
) -> FusionReport:
    """Writes to `dst` the model `src` with its embedding lookups fused, or made of stock ops.

    Every signature, variable and asset stays: `saved_model.pb` and `fingerprint.pb` are new,
    `fusion.json` is added, all other files are copied byte for byte. Variables are never loaded
    for the rewrite itself. `dst` appears complete and verified, or not at all; `src` is only read;
    a second run writes the same bytes. Load a fused result after `import fusion`, in TensorFlow
    2.18 to 2.21; one of target "stock" loads wherever the source does.

    Of a frozen graph, a file with a binary GraphDef, a file is made; its record is called like it,
    with `.fusion.json` after the name.

    Args:
        src: the directory of a SavedModel, made by compat.v1 or by TensorFlow 2; or a frozen graph.
        dst: the directory or file to create; it must not exist.
        target: what the lookups become: "fused" is the ops of this package, "stock" fewer ops of
            TensorFlow's own. What is fused in `src` becomes stock ops again with "stock".
        verify: whether to run both models on generated inputs, in child processes, and compare
            every output before `dst` appears: bit for bit, or, if lookups with weights or max_norm
            were fused or are not any more, within `ROUNDING`. Functions that no signature runs are
            rewritten too, but not compared.
        timeout: seconds that loading and running one model may take for that.
        outputs: names of the nodes or tensors of a frozen graph that are fetched; by default all
            nodes that no other node reads. They keep name and value.
        link: whether to make the unchanged files hard links of the source's, where the file system
            can. A change of such a file in place then changes both models.
        progress: is called with the number of bytes copied so far and of all that are copied.
        inputs: a file of recorded inputs to compare the models on, see `compare_models`; generated
            ones by default.
        batch_size: how many Examples of a TFRecord file of inputs are a batch.
        runtime: the version of TensorFlow, such as "2.4", in which a result of target "stock" has
            to load: no newer op is written. It is 1.12 or newer, and not newer than the one that is
            installed; by default the version that the model or its graph records.
        tables: where tables are: "variables" leaves them among the variables; "mapped" makes each
            a file of the model, which is mapped into memory when that is loaded: in milliseconds,
            in pages that all processes of a machine share and that the system can take back;
            "memory" has such files read then.
        least_table_bytes: smaller tables stay among the variables, and float32.
        dtype: what elements of float32 tables are stored as, wherever these are: "float32",
            "float16", "bfloat16", or "int8" or "int4" with a scale and an offset a row
            (`schema.row_formats`). Lookups go on computing in float32. A table that is read in
            another way than by lookups, or that has rows which cannot be stored so or would be no
            smaller, stays.
        table_dtypes: the dtypes of tables by name, or by patterns of these such as "user_*", of
            which the last counts that fits; whatever the sizes.
        max_deviation: what the elements of an output may differ by where tables are stored in fewer
            bits, as a share of its largest one; what is no float must be the same then. By default
            all that is the same dtype and shape passes. `rewrite_saved_model` returns deviations.
        request_inputs: the inputs of a signature that describe the request, and not a candidate.
            Signatures are added: `NAME_request` takes one row of each of them, and `NAME_requests`
            one for each request, beside `candidates_per_request`, int64 [requests]. Where they are
            features of Examples, `NAME_elwc` takes an ExampleListWithContext for each request.
            What depends on these inputs alone is computed for these rows. "auto" stands for those
            that have the same row throughout each batch of `inputs`, see `repeated_inputs`.
        signature: the key of that signature; by default the only one, or "serving_default".
        exact: whether the added signatures have to give the bits of the original one. Products of
            both kinds of columns are not split then.

    Returns:
        What was fused, and for each column that was not, why. With several meta graphs the
        columns of all of them.

    Raises:
        ModelError: `src` cannot be read, `dst` cannot be written, the result differs from the
            source (`VerificationError`), fused ops of `src` cannot become stock ones, or a table
            that `table_dtypes` names is none or cannot be stored so. No file is created.
        ValueError: an unknown target, runtime or dtype, a runtime with target "fused", or tables
            that are not known, or that are files or packed with target "stock"; a
            `max_deviation` that is negative, or without `verify`; or `request_inputs` "auto"
            without `inputs`, or of another text.
    """
    return rewrite_saved_model(
        src,
        dst,
        RewriteOptions(
            target,
            verify,
            timeout,
            outputs,
            link,
            inputs,
            batch_size,
            runtime,
            tables,
            least_table_bytes,
            dtype,
            tuple((table_dtypes or {}).items()),
            max_deviation,
            request_inputs if isinstance(request_inputs, str) else tuple(request_inputs),
            signature,
            exact,
        ),
        CopyObserver(progress),
    ).report


def rewrite_saved_model(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    options: RewriteOptions = _DEFAULTS,
    observer: Observer = _NOBODY,
) -> Rewrite:
    """Does what `fuse_saved_model` says and also returns the verification."""
    observer.begins(Step.READ)
    source = read_saved_model(src, options.outputs)
    write = _rewrite_frozen if source.is_frozen else _rewrite_directory
    done = write(source, dst, options, observer)
    reported = Reported(
        source.path,
        Target(options.target),
        options.release(),
        None if options.outputs is None else tuple(options.outputs),
        written=Path(os.path.abspath(os.fsdecode(dst))),
    )
    return replace(done, report=reported.in_report(done.report))


def _rewrite_directory(
    source: SourceModel, dst: str | os.PathLike[str], options: RewriteOptions, observer: Observer
) -> Rewrite:
    """Rewrites a SavedModel."""
    destination = check_destination(source.path, dst)
    with staged_directory(destination) as staging:
        result = _rewritten(source, options, staging.parent, observer)
        proto, done = result.proto, result.done
        content = _serialized(proto, source) if result.is_modified else source.content
        _build(source, staging, content, result, options.link, observer.copied)
        # A byte-identical copy needs no comparison; and its record is the one it came with.
        compare = options.verify and content != source.content
        if compare:
            tolerance = tolerance_of(done.report, has_fused_ops=_has_fused_ops(source, proto))
            if any(not table.refusal for table in done.packed):
                tolerance = inf if options.max_deviation is None else options.max_deviation
            observer.begins(Step.VERIFY)
            verification = verify_models(
                source.path, staging, tolerance, options, _checks(source, done)
            )
            unchecked = _not_reached(proto, done.report)
            done = replace(done, verification=verification, unchecked=unchecked)
        if content == source.content and (source.path / MANIFEST_FILE).is_file():
            copy_file(source.path / MANIFEST_FILE, staging / MANIFEST_FILE)
        else:
            write_file(staging / MANIFEST_FILE, _record(source, proto, options, done))
    return done


def _rewrite_frozen(
    source: SourceModel, dst: str | os.PathLike[str], options: RewriteOptions, observer: Observer
) -> Rewrite:
    """Rewrites a file with a GraphDef, which is verified as the SavedModel that it is seen as."""
    record = f"{os.path.basename(dst)}.{MANIFEST_FILE}"
    destination = check_destination(source.path, dst, record)
    with staged_files(destination.with_name(record), destination) as (record_file, file):
        result = _rewritten(source, options, file.parent, observer)
        proto, done, content = result.proto, result.done, source.content
        if result.is_modified:
            content = _serialized(proto.meta_graphs[0].graph_def, source)
        write_file(file, content)
        if options.verify and content != source.content:
            observer.begins(Step.VERIFY)
            models = file.parent / "source", file.parent / "model"
            for model, seen_as in zip(models, (source.proto, proto), strict=True):
                model.mkdir()
                write_loadable(seen_as, model)
            tolerance = tolerance_of(done.report, has_fused_ops=_has_fused_ops(source, proto))
            done = replace(done, verification=verify_models(*models, tolerance, options))
        write_file(record_file, _record(source, proto, options, done))
    return done


def _checks(source: SourceModel, done: Rewrite) -> list[RequestCheck]:
    """Returns the signatures in which a request has one row: the source's, and new ones."""
    return [
        *recorded_checks(source),
        *(
            RequestCheck(
                one.name,
                one.of,
                one.names,
                one.counts or "",
                one.examples,
                one.inputs,
                one.lists,
            )
            for one in done.requests
        ),
    ]


def _record(
    source: SourceModel,
    proto: saved_model_pb2.SavedModel,
    options: RewriteOptions,
    done: Rewrite,
) -> bytes:
    ops, recorded = _custom_ops(proto), options.recorded(source.is_frozen)
    facts = (source, done.report, ops, recorded, done.runtimes, done.verification, done.unchecked)
    return manifest(*facts, packed=done.packed, requests=_checks(source, done))


def explain_saved_model(path: str | os.PathLike[str]) -> FusionReport:
    """Returns what `fuse_saved_model` would do to the SavedModel `path`; writes nothing.

    Raises:
        ModelError: `path` cannot be read.
    """
    source = read_saved_model(path)
    with graph_errors(source.path):
        reports = [lookup_pass(meta).explain(meta.graph_def) for meta in source.meta_graphs]
    return Reported(source.path).in_report(FusionReport.merge(reports))


def rewrite_meta_graph(
    meta: meta_graph_pb2.MetaGraphDef,
    target: Target,
    model: str | os.PathLike[str],
    *,
    was_rewritten: bool,
    runtime: Release | None = None,
) -> FusionResult:
    """Applies the pass to a meta graph in place.

    Args:
        meta: the meta graph.
        target: what lookups become.
        model: where it is from.
        was_rewritten: whether the pass is known to have fused it before.
        runtime: the TensorFlow release that stock ops are written for; by default that of `meta`.

    Raises:
        ModelError: the graph makes no sense, or has ops that cannot become stock ones.
    """
    with graph_errors(model):
        lookups = lookup_pass(meta, target, runtime)
        result = apply_pass(meta, lookups)
    if target is Target.STOCK:
        message = remaining_fused_ops(
            result.graph_def, result.report, lookups.runtime, was_rewritten=was_rewritten
        )
        if message is not None:
            raise ModelError(f"{model}: {message}")
    return result


def _rewritten(
    source: SourceModel, options: RewriteOptions, scratch: Path, observer: Observer
) -> _Rewritten:
    """Applies the pass to each meta graph of a copy, and stores its tables as requested.

    Args:
        source: the model.
        options: how it is rewritten.
        scratch: a folder for packed tables.
        observer: is called for each event.
    """
    observer.begins(Step.FUSE)
    target, proto = Target(options.target), saved_model_pb2.SavedModel()
    proto.CopyFrom(source.proto)
    was_rewritten, runtime = _was_rewritten(source), options.release()
    repeats: Repeats | None = None
    requests: list[RequestSignature] = []
    if options.request_inputs:
        repeats, requests = _with_requests(proto, source, options)
    results = [
        rewrite_meta_graph(meta, target, source.path, was_rewritten=was_rewritten, runtime=runtime)
        for meta in proto.meta_graphs
    ]
    report = FusionReport.merge(result.report for result in results)
    observer.fused(report)
    observer.begins(Step.WRITE)
    bundle, packed, tables = store_tables(source, proto, options, scratch)
    is_modified = bool(requests) or bundle is not None or any(one.modified for one in results)
    runtimes = None
    if _custom_ops(proto):
        runtimes = FUSED_RUNTIMES
    elif is_modified:
        recorded = max(map(release_of, source.meta_graphs))
        first = recorded if runtime is None else runtime
        runtimes = Runtimes(first, need_source=first < recorded or bool(report.newer))
    done = Rewrite(
        report,
        None,
        runtimes=runtimes,
        tables=tuple(tables),
        packed=tuple(packed),
        requests=tuple(requests),
        repeats=repeats,
    )
    return _Rewritten(proto, done, is_modified, bundle)


def _with_requests(
    proto: saved_model_pb2.SavedModel, source: SourceModel, options: RewriteOptions
) -> tuple[Repeats | None, list[RequestSignature]]:
    """Adds the signatures in which a request has one row, in place."""
    from fusion.saved_model.requests.repeats import repeats_of
    from fusion.saved_model.requests.request_signatures import RequestInputs, add_request_signatures

    if source.is_frozen or len(proto.meta_graphs) > 1:
        what = "a frozen graph" if source.is_frozen else "a model of several graphs"
        raise ModelError(f"{source.path}: {what} gets no signature for requests")
    (meta,), names, repeats = proto.meta_graphs, options.request_inputs, None
    with graph_errors(source.path):
        if options.finds_request_inputs and options.inputs is not None:
            repeats = repeats_of(source, options.inputs, options.signature, options.batch_size)
            names = repeats.request_inputs()
        inputs = RequestInputs(tuple(names), options.signature, options.exact)
        added = add_request_signatures(meta, inputs, source.path)
        update_op_list(meta)
    return repeats, added


def _was_rewritten(source: SourceModel) -> bool:
    """Whether the model has a record of a rewrite."""
    if source.is_frozen:
        return source.path.with_name(f"{source.path.name}.{MANIFEST_FILE}").is_file()
    return (source.path / MANIFEST_FILE).is_file()


def _serialized(proto: Message, source: SourceModel) -> bytes:
    try:
        serialized: bytes = proto.SerializeToString(deterministic=True)
    except ValueError as error:
        raise ModelError(
            f"{source.path}: the rewritten graph exceeds the 2 GiB limit of a protocol buffer"
        ) from error
    return serialized


def _custom_ops(proto: saved_model_pb2.SavedModel) -> frozenset[str]:
    return frozenset(OP_NAMES).intersection(
        name for meta in proto.meta_graphs for name in used_ops(meta)
    )


def _not_reached(proto: saved_model_pb2.SavedModel, report: FusionReport) -> tuple[str, ...]:
    """Returns the functions with new fused ops that no main graph calls."""
    reached = frozenset[str]().union(*(reached_functions(m.graph_def) for m in proto.meta_graphs))
    fused = dict.fromkeys(c.function for c in report.lookups if c.fused and c.function)
    fused |= dict.fromkeys(one.function for one in report.front if one.is_replaced and one.function)
    return tuple(name for name in fused if name not in reached)


def _build(
    source: SourceModel,
    staging: Path,
    content: bytes,
    result: _Rewritten,
    link: bool,
    progress: Progress,
) -> None:
    """Fills `staging`: `content` as `saved_model.pb`, its fingerprint, tables, and the rest."""
    ours = {Path(MODEL_FILE), Path(FINGERPRINT_FILE), Path(MANIFEST_FILE)}
    folders, files = model_files(source.path)
    for folder in folders:
        (staging / folder).mkdir()
    unchanged = [file for file in files if file not in ours]
    if (bundle := result.bundle) is not None:
        unchanged = [file for file in unchanged if not bundle.has_file(source.path / file)]
        write_tables(bundle, result.done.tables, staging)
    copy_files(source.path, staging, unchanged, link, progress)
    write_file(staging / MODEL_FILE, content)
    if Path(FINGERPRINT_FILE) not in files:
        return
    if content == source.content:
        copy_file(source.path / FINGERPRINT_FILE, staging / FINGERPRINT_FILE)
    else:
        write_file(staging / FINGERPRINT_FILE, compute_fingerprint(staging, content))


def _has_fused_ops(source: SourceModel, proto: saved_model_pb2.SavedModel) -> bool:
    return bool(_custom_ops(source.proto) or _custom_ops(proto))
