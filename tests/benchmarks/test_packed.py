from __future__ import annotations

import json

from benchmarks import packed
from fusion.schema.row_formats import ROW_FORMATS


def test_all_formats_are_measured():
    dims = packed.measure(0.02, [9], 0.01)
    found = json.loads(json.dumps({"dims": dims}))["dims"]["9"]
    assert tuple(found["bytes"]) == ROW_FORMATS
    assert found["bytes"]["plain"] == 4 * 9 * int(0.02 * 2**20 / 36)
    for times in found["seconds"].values():
        assert tuple(times) == ROW_FORMATS
        assert len({len(seconds) for seconds in times.values()}) == 1
    lines = packed.report({"dims": dims}).splitlines()
    assert len(lines) == 2 + 2 * len(ROW_FORMATS)
    assert lines[2].startswith("| 9 | 512 | plain | 1.000 | ")
    assert lines[2].endswith(" | 1.00 (1.00 to 1.00) |")
