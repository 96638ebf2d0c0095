from __future__ import annotations

import pytest
from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import dtypes as tf_dtypes

from fusion.runtime.tensorflow.dtypes import COMPUTED, DTYPES, FLOATS, IDS, WIDENED


@pytest.mark.parametrize("name", DTYPES)
def test_a_dtype_is_as_in_tensorflow(name: str) -> None:
    dtype, known = DTYPES[name], tf_dtypes.as_dtype(name)
    assert dtype.enum == known.as_datatype_enum
    assert dtype.item_bytes == known.size == dtype.stored_type().itemsize
    assert types_pb2.DataType.Name(dtype.enum) == f"DT_{dtype.c_name.upper()}"


def test_codes() -> None:
    """Those of tables, weights and ids tell them apart; the others have none."""
    codes = [DTYPES[name].code for name in (*FLOATS, *IDS)]
    assert sorted(codes) == [*range(len(codes))]
    assert {DTYPES[name].code for name in DTYPES.keys() - {*FLOATS, *IDS}} == {-1}


def test_what_kernels_compute_in() -> None:
    assert COMPUTED == ("float32", "float64")
    assert {DTYPES[name].compute for name in FLOATS} == set(COMPUTED)
    assert {name for name in FLOATS if DTYPES[name].code in WIDENED} == {"float16", "bfloat16"}
