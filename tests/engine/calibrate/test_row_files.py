"""Files of rows: what is read of them, and what is refused."""

import gzip

import pytest

from routesparse.engine.calibrate import row_files
from routesparse.engine.errors import ConfigError, InputError

LINES = '{"a": 1}\n{"a": {"b": 2}}\n'


def test_a_torn_line_is_left_out_wherever_it_ends(tmp_path):
    path = tmp_path / "p.jsonl"
    for torn in ('{"a": {"b": 3}', '{"a": {"b"', "{", '{"a": "x}'):
        path.write_text(f"{LINES}{torn}\n" + '{"a": 4}\n')
        assert [row["a"] for _, row in row_files.read_lines(path)] == [1, {"b": 2}, 4]
    path.write_text(LINES + "{'a': 3}\n")
    with pytest.raises(InputError, match=r"line 3 of .*p\.jsonl: .*remove it"):
        list(row_files.read_lines(path))


def test_rows_that_failed_are_told_at_the_end_with_a_cure_for_a_full_device(tmp_path, capsys):
    for why, cure in (("RuntimeError: CUDA driver error: out of memory", True), ("ValueError: x", False)):
        with row_files.Appender(tmp_path / "p.jsonl") as out:
            out.write({"a": 1})
            out.write({"failed": why})
            out.write({"failed": why})
        told = capsys.readouterr().err
        assert f"2 measurements failed, the first: {why}; the same command tries them again" in told
        assert ("fewer --processes" in told) == cure
    with row_files.Appender(tmp_path / "q.jsonl") as out:
        out.write({"a": 1})
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz"])
def test_a_file_beyond_the_bound_is_refused_packed_or_not(tmp_path, monkeypatch, ending):
    path, content = tmp_path / f"p{ending}", LINES.encode() * 2_000
    packed = gzip.compress if ending.endswith(".gz") else bytes
    monkeypatch.setattr(row_files, "MOST_BYTES", len(content))
    path.write_bytes(packed(content))
    assert len(list(row_files.read_lines(path))) == 4_000
    path.write_bytes(packed(content + b" "))
    with pytest.raises(InputError, match="more than"):
        list(row_files.read_lines(path))


@pytest.mark.parametrize("content", [b"no gzip", gzip.compress(LINES.encode())[:-9]], ids=["foreign", "torn"])
def test_a_damaged_archive_is_refused_with_its_name(tmp_path, content):
    path = tmp_path / "p.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"p\.jsonl\.gz can't be read"):
        list(row_files.read_lines(path))


def test_a_compressed_file_is_not_appended_to(tmp_path):
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b"{}\n"))
    with pytest.raises(ConfigError, match="compressed and can't be appended to"):
        row_files.Appender(path)
    assert gzip.decompress(path.read_bytes()) == b"{}\n"
