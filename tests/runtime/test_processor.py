"""Which processor kernels are compiled for."""

import logging
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest

import fusion
from fusion.cpu_ops import row_tiles
from fusion.runtime.cache import processor
from fusion.runtime.cache.processor import Processor, named, runs


def test_it_is_this_machines_unless_one_is_named():
    assert processor.choice("") == (processor.host(), "")
    assert processor.host().name == llvm.get_host_cpu_name()
    chosen, why_not = processor.choice("x86-64-v3")
    assert (chosen, why_not) == (Processor("x86-64-v3"), "")


@pytest.mark.parametrize(
    ("code", "machine", "wanted"),
    [
        ("x86-64-v3", "x86-64-v3", True),
        ("x86-64-v3", "haswell", True),
        ("haswell", "x86-64-v3", False),
        ("x86-64-v4", "haswell", False),
        ("x86-64-v4", "skylake-avx512", True),
        ("x86-64-v4", "znver4", True),
        ("x86-64-v3", "znver4", True),
        ("znver4", "icelake-server", False),
    ],
)
def test_llvm_knows_what_runs_where(code, machine, wanted):
    assert runs(named(code), on=named(machine)) == wanted


def test_the_features_of_this_machine_count_and_not_its_name_alone():
    crippled = Processor("znver4", "-avx512f")
    assert runs(named("x86-64-v4"), on=Processor("znver4"))
    assert not runs(named("x86-64-v4"), on=crippled)
    assert runs(named("x86-64-v3"), on=crippled)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x86-64", "'x86-64' is none of x86-64-v2, "),
        ("pentium4", "'pentium4' is none of x86-64-v2, "),  # LLVM would end the process
        ("X86-64-V3", "is none of"),
        ('"', "is none of"),
    ],
)
def test_what_has_no_kernels_is_refused(name, message):
    with pytest.raises(ValueError, match=message):
        named(name)


def test_llvm_knows_all_names():
    """It says on standard error which it does not know."""
    code = "from fusion.runtime.cache.processor import NAMES, named, runs\n"
    code += "print(all(runs(named(name), on=named(name)) for name in NAMES))"
    stub = (
        f"import sys, types\npackage = types.ModuleType('fusion')\npackage.__path__ = [{ROOT!r}]\n"
    )
    stub += "sys.modules['fusion'] = package\n"
    command = [sys.executable, "-c", stub + code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("True\n", "")


ROOT = str(Path(fusion.__file__).parent)


@pytest.mark.parametrize("name", ["x86-64-v4", "unheard-of"])
def test_a_choice_that_does_not_run_here_is_this_machines_with_one_warning(
    monkeypatch, caplog, name
):
    old = Processor("haswell", "+avx2,+f16c,-avx512f")
    monkeypatch.setattr(processor, "host", lambda: old)
    monkeypatch.setenv(processor.CPU_VARIABLE, name)
    processor.default_target.cache_clear()
    try:
        with caplog.at_level(logging.WARNING, "fusion"):
            assert processor.target() == processor.target() == old
    finally:
        processor.default_target.cache_clear()
    (message,) = caplog.messages
    assert name in message
    assert message.endswith("kernels are those of this machine's processor")


def test_kernels_have_the_vectors_of_the_processor():
    with processor.compiling_for(named("x86-64-v3")):
        assert row_tiles.tiles("float32")[-1] == (8, 8)
    with processor.compiling_for(named("x86-64-v4")):
        assert row_tiles.tiles("float32")[-1] == (16, 8)


def test_code_has_the_instructions_of_the_processor_alone():
    from fusion.cpu_ops import gather
    from fusion.runtime.native.compiler import compile_object

    def object_for(name, lanes):
        with processor.compiling_for(named(name)):
            return compile_object(gather.tile_kernel("float32", lanes, 2, False, False), 1, "it")

    assert evex_prefixes(object_for("x86-64-v3", 8)) == 0
    assert evex_prefixes(object_for("x86-64-v4", 16)) > 10


def evex_prefixes(code):
    """How often machine code may have the prefix of an instruction that only AVX-512 has.

    Intel 64 Architectures Software Developer's Manual, volume 2, 2.7.1: 0x62, three bits and a
    zero, a map from 1 to 3, five bits and a one.
    """
    sections = llvm.ObjectFileRef.from_data(code).sections()
    text = b"".join(section.data() for section in sections if section.is_text())
    triples = zip(text, text[1:], text[2:], strict=False)
    return sum(a == 0x62 and not b & 8 and 1 <= b & 7 <= 3 and bool(c & 4) for a, b, c in triples)
