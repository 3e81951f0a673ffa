"""JSON files of others take a bounded time and memory, whatever they say. No GPU."""

from __future__ import annotations

import pytest

from routesparse.engine.files.plain_files import read_json


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" + ",".join(["[]"] * 1_000_000) + "]", "more than 524,288 values"),
        ("{" + ",".join(f'"{i}":0' for i in [*range(80_000), 79_999]) + "}", "'79999' stands twice"),
    ],
    ids=["values", "names"],
)
def test_a_file_of_very_many_values_or_names_is_refused_at_once(tmp_path, text, why):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match=why):
        read_json(tmp_path / "x.json", 1 << 26)
