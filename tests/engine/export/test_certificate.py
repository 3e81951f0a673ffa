"""A certificate for somebody else: every column explained, the ZIP's snippet runs, the page says what is stored."""

from __future__ import annotations

import subprocess
import sys
import zipfile

import pytest

from routesparse.engine.export import archive, report_page
from routesparse.engine.export.certificate_words import lower, upper
from routesparse.engine.store import bundle


@pytest.fixture(scope="module")
def folder(factory, tmp_path_factory):
    """The bundle of a certificate whose names are hostile."""
    record = factory.make_certificate(prompt_name="<script>alert(1)</script>.txt")
    return bundle.write_bundle(record, tmp_path_factory.mktemp("certificates"))


def test_the_zip_says_what_it_is_and_its_snippet_reads_it(folder, tmp_path):
    with zipfile.ZipFile(archive.write(folder, tmp_path / "one.zip", text=True)) as packed:
        packed.extractall(tmp_path)
    inside = tmp_path / folder.name
    assert (inside / archive.README).read_text().startswith(f"RouteSparse certificate {folder.name}")
    dictionary = (inside / archive.DICTIONARY).read_text()
    assert "## claim.parquet" in dictionary and "## audit.parquet" not in dictionary
    assert "a measurement of them, no bound for other rows" in dictionary
    code = "import sys; sys.modules['routesparse'] = None; import runpy; runpy.run_path('load.py', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=inside, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "differs" in done.stdout


def test_the_page_says_verdict_worst_heads_and_limits_without_running_anything(folder):
    page = report_page.of_bundle(folder, words=False)
    assert "Differs from exact attention." in page and 'class="verdict amber"' in page
    worst = page[page.index("Worst heads") :]
    assert worst.index("layer 3, head 3") < worst.index("layer 3, head 2")
    assert "may have been missed" in page
    assert "<script" not in page and "&lt;script&gt;alert(1)" in page


@pytest.mark.parametrize("text", [True, False])
def test_what_named_tokens_read_goes_only_where_it_is_asked_for(folder, tmp_path, text):
    page = report_page.of_bundle(folder, words=text)
    assert "Rows that were named" in page and "no bound for any other row" in page
    assert ("w4095" in page) == text and "last:8" in page
    assert page.index("4,095") < page.index("4,094"), "the worst first"
    assert archive.has_text(folder)
    with zipfile.ZipFile(archive.write(folder, tmp_path / "one.zip", text=text)) as packed:
        packed.extractall(tmp_path)
    inside = tmp_path / folder.name
    assert bundle.read_certificate(inside).named[0].text == ("w4088" if text else None)
    assert archive.has_text(inside) == text
    told = "the prompt’s text is inside (named_row.parquet)" if text else "text is not inside"
    assert told in (inside / archive.README).read_text()


def test_bounds_are_rounded_to_the_safe_side():
    assert upper(0.04661) == "0.047" and upper(0.0466, True) == "4.7 %"
    assert lower(0.7999) == "0.79" and lower(0.99953, True) == "99.953 %"
    assert upper(None) == lower(None) == "not measured"
