from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from fusion.cli import main
from fusion.ops.registered import SPECS
from fusion.passes.graph.runtime_ops import running_release
from fusion.passes.targets import PASSES, Target
from fusion.version import __version__
from tests.cli.test_app import command
from tests.saved_model import request_models
from tests.saved_model.test_rewrite import WrongPass


def test_inspect_lists_columns(models: Path):
    done = command("inspect", models / "keras")
    assert done.returncode == 0
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    row = next(line for line in lines if "shop_embedding/embedding_weights" in line)
    assert row.split()[1:] == ["float[80,", "8]", "sum", "sparse", "int64", "args_0_4", "yes"]
    totals = next(k for k, line in enumerate(lines) if line.startswith("4 of 4 columns can be"))
    assert lines[totals + 1] == "8 other lookups that no signature runs: 8 can be fused"
    ids, call = lines[totals + 2 :]
    assert ids.endswith("/concat/ids (ids of 2 columns, 1 by vocabularies)")
    assert re.fullmatch(r"ops of a call: ids \d+ -> \d+, lookups \d+ -> \d+, dense .*", call)


def test_inspect_as_json(models: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["inspect", "--json", str(models / "tf2")]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["fused"], report["total"]) == (2, 2)
    assert [column["name"] for column in report["columns"]] == ["items", "shops"]


def test_inspect_of_a_model_without_embeddings(models: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["inspect", str(models / "plain")]) == 0
    assert capsys.readouterr().out == "no embedding column found: nothing to fuse\n"
    assert main(["inspect", "--json", str(models / "plain")]) == 0
    assert json.loads(capsys.readouterr().out)["total"] == 0


def test_rewrite_verify_and_report(models: Path, tmp_path: Path):
    src, dst, report = models / "example", tmp_path / "dst", tmp_path / "report.json"
    done = command("rewrite", src, dst, "--report", report)
    assert done.returncode == 0
    assert done.stderr == ""
    first, parser, second, third = done.stdout.splitlines()
    assert first.startswith("2 of 2 columns fused, ")
    assert parser.startswith("fused  ")
    assert parser.endswith(" features)")
    agreed = "1 signature, 12 runs, outputs equal to the bit; 2 runs fail alike in both"
    assert second == f"verified: {agreed}"
    load = "run `import fusion` before loading it, in TensorFlow 2.18 to 2.21"
    assert third == f"wrote {dst}; {load}"
    assert json.loads(report.read_text())["fused"] == 2
    assert (dst / "fusion.json").is_file()

    same = command("verify", src, dst)
    assert same.returncode == 0
    assert same.stdout.splitlines() == [
        "both fail alike: serving_default, batch 32 with ids out of range (session): "
        "InvalidArgumentError",
        "both fail alike: serving_default, batch 32 with ids out of range (function): "
        "InvalidArgumentError",
        f"same: {agreed}",
    ]


def test_verify_names_what_differs(
    models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    assert main(["verify", str(models / "tf2"), str(models / "plain")]) == 1
    assert "signature 'embedding': only the first model has it" in capsys.readouterr().out

    monkeypatch.setitem(PASSES, Target.FUSED, WrongPass)
    wrong = str(tmp_path / "wrong")
    assert main(["rewrite", "--no-verify", str(models / "tf2"), wrong]) == 0
    capsys.readouterr()
    done = command("verify", models / "tf2", wrong)
    assert done.returncode == 1
    first, *_, last = done.stdout.splitlines()
    assert first.startswith("signature 'embedding', output 'embedding', batch 1")
    assert "elements differ, by at most" in first
    assert last.startswith("different: signature 'embedding'")
    assert "the largest: " in last
    assert re.search(r"; \d of 2 columns differ, first '(items|shops)' at node .*: row \d+, ", last)


def test_verify_runs_recorded_inputs(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file, model = tmp_path / "inputs.npz", str(models / "plain")
    np.savez(file, x=np.ones((2, 3), np.float32))
    assert main(["verify", "--inputs", str(file), model, model]) == 0
    assert capsys.readouterr().out == "same: 1 signature, 2 runs, outputs equal to the bit\n"

    np.savez(file, x=np.ones((2, 4), np.float32))
    assert main(["verify", "--inputs", str(file), model, model]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"fusion: error: {file}: input 'x' of signature 'serving_default' takes the shape [?, 3], "
        "and its array is [2, 4]"
    )


def test_verify_takes_batches_of_examples(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file, model = tmp_path / "examples", str(models / "example")
    example = tf.train.Example()
    example.features.feature["price"].float_list.value.extend([1.0, 2.0])
    with tf.io.TFRecordWriter(str(file)) as writer:
        for _ in range(5):
            writer.write(example.SerializeToString())
    assert main(["verify", "--inputs", str(file), "--batch-size", "2", model, model]) == 0
    assert capsys.readouterr().out == "same: 1 signature, 6 runs, outputs equal to the bit\n"
    assert main(["verify", "--inputs", str(tmp_path / "none"), model, model]) == 2
    assert capsys.readouterr().err == (
        f"fusion: error: {tmp_path / 'none'}: cannot be read: no such file or directory\n"
    )


def test_rewrite_runs_recorded_inputs(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file, model, new = tmp_path / "examples", str(models / "example"), tmp_path / "new"
    assert main(["rewrite", "--inputs", str(file), model, str(new)]) == 2
    assert capsys.readouterr().err == (
        f"fusion: error: nothing written: {file}: cannot be read: no such file or directory\n"
    )
    assert not new.exists()
    example = tf.train.Example()
    example.features.feature["price"].float_list.value.extend([1.0, 2.0])
    with tf.io.TFRecordWriter(str(file)) as writer:
        for _ in range(3):
            writer.write(example.SerializeToString())
    options = ["--inputs", str(file), "--batch-size", "2"]
    assert main(["rewrite", *options, model, str(new)]) == 0
    assert "verified: 1 signature, 4 runs, outputs equal to the bit" in capsys.readouterr().out
    assert json.loads((new / "fusion.json").read_text())["options"]["inputs"] == "examples"


def test_rewrite_takes_what_repeats_in_recorded_inputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    model, file = request_models.save(tmp_path / "stock"), tmp_path / "inputs.npz"
    np.savez(file, **request_models.rows(4))
    options = ("--target", "stock", "--inputs", str(file), "--request-inputs", "auto")
    assert main(["rewrite", str(model), str(tmp_path / "new"), *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "age, user: the same row throughout each batch of 4 rows" in lines
    once = "age, user once; 1 tensor repeated for candidates"
    assert f"signature serving_default_request: {once}" in lines
    assert main(["verify", str(model), str(tmp_path / "new")]) == 0
    assert "\nsame: 3 signatures, " in capsys.readouterr().out
    assert main(["rewrite", str(model), str(tmp_path / "x"), "--request-inputs", "auto"]) == 2
    assert "'auto' needs recorded ones" in capsys.readouterr().err
    assert main(["rewrite", str(model), str(tmp_path / "x"), "--request-inputs", "auto,"]) == 2
    assert "has no input 'auto'" in capsys.readouterr().err


def test_rewrite_of_a_model_without_embeddings(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    dst = tmp_path / "dst"
    assert main(["rewrite", "--no-verify", str(models / "plain"), str(dst)]) == 0
    assert capsys.readouterr().out == (
        f"no embedding column found: nothing to fuse\nnothing was rewritten: {dst} is a copy\n"
    )
    assert (dst / "saved_model.pb").is_file()


def test_rewrite_without_verification_says_so(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["rewrite", "--no-verify", str(models / "tf2"), str(tmp_path / "dst")]) == 0
    assert "not verified" in capsys.readouterr().out.splitlines()


def test_doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    done = command("doctor")
    assert done.returncode == 0
    assert "tensorflow" in done.stdout
    assert done.stdout.splitlines()[-1] == "everything works"

    from fusion.runtime import doctor

    monkeypatch.setattr(doctor, "facts", lambda _: [("good", "1", True), ("bad", "[x]", False)])
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[1:3]] == [["ok", "good", "1"], ["BROKEN", "bad", "[x]"]]
    assert lines[-1] == "broken: bad"


def test_doctor_shows_all_of_a_folder_in_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fusion.runtime import doctor

    folder = "/".join(map(str, range(100)))  # longer than a line, and without a space
    monkeypatch.setattr(doctor, "facts", lambda _: [("kernel cache", folder, True)])
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert folder in "".join(line.split()[-1] for line in out.splitlines())


def test_rewrite_says_what_it_could_not_compare(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    dst = tmp_path / "dst"
    assert main(["rewrite", str(models / "keras"), str(dst)]) == 0
    unchecked = json.loads((dst / "fusion.json").read_text())["unchecked_functions"]
    assert unchecked
    line = f"not compared: {len(unchecked)} functions that no signature runs, named in fusion.json"
    assert line in capsys.readouterr().out.splitlines()


def test_warm_compiles_for_a_model_and_says_how_to_use_it(models: Path, tmp_path: Path):
    """One that needs few kernels; those of lookups in tests/saved_model/test_warming.py."""
    done = command("warm", models / "plain", "--dir", tmp_path / "kernels", "--cpu", "x86-64-v3")
    kernels = len([*(tmp_path / "kernels").glob("*.o")])
    assert kernels
    progress = f"compiling {kernels} kernels, a second or more for each\n"
    assert (done.returncode, done.stderr) == (0, progress)
    first, second = done.stdout.splitlines()
    made = rf"{kernels} of them added in \d+\.\d s"
    assert re.fullmatch(rf"{kernels} kernels for x86-64-v3 in {tmp_path}/kernels, {made}", first)
    settings = f"FUSION_CACHE_DIR={tmp_path}/kernels FUSION_CPU=x86-64-v3"
    assert second == f"they are used with {settings}"


def test_warm_says_that_all_is_there(models: Path, capsys: pytest.CaptureFixture[str]):
    for _ in range(2):
        assert main(["warm", str(models / "tf2"), str(models / "example")]) == 0
    (last,) = capsys.readouterr().out.splitlines()[1:]
    assert ", 0 of them added in " in last


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cpu", "i386"], "'i386' is none of x86-64-v2, "),
        (["--dir", "/proc/none"], "/proc/none: No such file or directory"),
        (["none"], "none: no such file or directory"),
    ],
)
def test_what_warm_cannot_do_is_one_line(
    models: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
):
    assert main(["warm", str(models / "tf2"), *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith(f"fusion: error: {message}")


@pytest.mark.parametrize("choice", ["", "x86-64-v3", "unheard-of"])
def test_doctor_tells_the_processor_of_kernels(
    monkeypatch: pytest.MonkeyPatch, choice: str, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("FUSION_CPU", choice)
    assert main(["doctor"]) == int(choice == "unheard-of")
    line = next(x for x in capsys.readouterr().out.splitlines() if x.split()[1] == "processor")
    assert ("kernels for x86-64-v3" in line) == (choice == "x86-64-v3")
    assert line.startswith("BROKEN" if choice == "unheard-of" else "ok")


def test_rewrite_for_another_tensorflow_says_which(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    arguments = ["rewrite", "--no-verify", "--target", "stock", str(models / "tf2")]
    for runtime in ([], ["--runtime", f"{running_release()}.0"]):
        dst = tmp_path / f"of {len(runtime)}"
        assert main([*arguments, str(dst), *runtime]) == 0
        last = capsys.readouterr().out.splitlines()[-1]
        assert last == f"wrote {dst}; it needs TensorFlow alone"
    dst = tmp_path / "older"
    assert main([*arguments, str(dst), "--runtime", "2.4"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"wrote {dst}; it needs TensorFlow alone, 2.4 or newer, and loads where SRC does"
    assert json.loads((dst / "fusion.json").read_text())["options"]["runtime"] == "2.4"


@pytest.mark.parametrize("runtime", ["latest", "1.4", "2.99"])
def test_rewrite_for_what_is_no_tensorflow_is_an_error(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], runtime: str
):
    arguments = ["rewrite", str(models / "tf2"), str(tmp_path / "dst"), "--runtime", runtime]
    assert main([*arguments, "--target", "stock"]) == 2
    assert capsys.readouterr().err == (
        "fusion: error: Invalid value for --runtime: runtime must be a version of TensorFlow such "
        f"as 2.4 or 2.15.1, from 1.12 to the {running_release()} that is installed, got "
        f"{runtime!r}; see `fusion rewrite --help`\n"
    )
    assert main(arguments) == 2
    assert capsys.readouterr().err == (
        "fusion: error: Invalid value for --runtime: runtime is for target 'stock', got "
        f"{runtime!r} with target 'fused'; see `fusion rewrite --help`\n"
    )
    assert not (tmp_path / "dst").exists()


@pytest.fixture
def no_generic_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets libraries have the kernels of models alone: all take minutes."""
    from fusion.ops import node_kernels

    monkeypatch.setattr(node_kernels, "places_of_all_ops", list)
    monkeypatch.setattr(node_kernels, "places_of_any_dimension", list)


@pytest.mark.usefixtures("no_generic_kernels")
def test_build_ops_writes_a_library_that_doctor_reads(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    library = tmp_path / "libfusion_ops.so"
    options = ["--cpu", "x86-64-v3", "--cpu", "native", "--manifest"]
    assert main(["build-ops", "-o", str(library), str(models / "tf2"), *options]) == 0
    *manifest, last = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"{library}: {len(SPECS)} ops, \d+ kernels for x86-64-v3.*", last)
    assert main(["doctor", str(library)]) == 0
    assert capsys.readouterr().out.splitlines() == manifest
    assert manifest[0] == f"fusion {__version__}"
    assert "GroupedEmbeddingLookup" in manifest[1]
    assert re.match(r"\d+ kernels for x86-64-v3: .*lookup_kernel_CPU", manifest[2])


@pytest.mark.usefixtures("no_generic_kernels")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cpu", "v3"], "cpus must be of x86-64-v2, x86-64-v3, x86-64-v4, native, got 'v3'"),
        (["none"], "none: no such file or directory"),
        (["-o", "/proc/none/lib.so"], "/proc/none cannot be written"),
        (["-o", "."], "output . is a folder, give a file"),
    ],
)
def test_what_build_ops_cannot_do_is_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    output = tmp_path / "lib.so"
    assert main(["build-ops", "-o", str(output), *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fusion: error: ")
    assert message in line
    assert not [*tmp_path.iterdir()]


def test_doctor_of_what_is_no_library_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    other = tmp_path / "other.so"
    assert main(["doctor", str(other)]) == 2
    assert f"{other}: No such file or directory" in capsys.readouterr().err
    other.write_text("text")
    assert main(["doctor", str(other)]) == 2
    assert "other.so: no library of fusion ops, or a damaged one" in capsys.readouterr().err
