"""What a notebook shows of a run and of a certificate, and what it shows before there is one. No GPU."""

from __future__ import annotations

import webbrowser
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from routesparse.engine.errors import InputError, PromptError
from routesparse.engine.export.notebook import Shown


class Held(Shown):
    def __init__(self, record):
        self.held = record

    def record(self):
        if self.held is None:
            raise PromptError("nothing yet")
        return self.held

    def __repr__(self):
        return "Held <nothing>"


@pytest.fixture(scope="module")
def run(factory):
    return factory.make_record(layers=3, heads=5, segments=2, tokens=4096, probe=False)


def cells(picture):
    tree = ET.fromstring(picture.svg)
    return {one[0].text.split(":")[0]: one for one in tree if one.tag.endswith("rect")}


def test_a_run_is_a_map_of_means_with_its_verdict_and_a_frame_of_its_choices(run):
    shown = Held(run)
    frame = shown.to_frame()
    assert len(frame) == 30 and frame["pattern"].tolist() == [c.pattern for c in run.choices]
    found = cells(shown.plot("density"))
    assert len(found) == 15
    mean = frame.query("layer == 2 and head == 4")["density"].mean()
    assert found["layer 2, head 4"][0].text == f"layer 2, head 4: {mean:.4g}"
    html = shown._repr_html_()
    assert "No warning." in html and shown.plot("density").svg in html


def test_the_extremes_of_a_map_have_the_ends_of_the_scale_and_what_is_missing_is_grey(run):
    choices = tuple(
        replace(c, loss_nats=None if c.layer else 0.001 * (1 + c.head), lower_mass=None) for c in run.choices
    )
    found = cells(Held(replace(run, choices=choices)).plot("loss_nats"))
    told = {
        name: found[name].get("fill") for name in ("layer 0, head 0", "layer 0, head 4", "layer 1, head 0")
    }
    assert list(told.values()) == ["#eef3fa", "#143f82", "#e4e6e8"]
    assert found["layer 1, head 0"][0].text.endswith("not measured")
    unmeasured = cells(Held(replace(run, choices=choices)).plot("lower_mass"))
    assert {one.get("fill") for one in unmeasured.values()} == {"#e4e6e8"}


def test_a_certificate_is_a_map_of_its_heads_errors(factory):
    shown = Held(factory.make_certificate())
    assert len(shown.to_frame()) == len(cells(shown.plot())) == 16
    assert "Differs from exact attention." in shown._repr_html_()


def test_a_column_without_numbers_is_refused_with_those_that_have_some(run):
    with pytest.raises(InputError, match=r"no map of 'pattern'; choose one of .*density"):
        Held(run).plot("pattern")


def test_the_page_is_opened_from_the_home_without_words_of_the_prompt(run, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setenv("ROUTESPARSE_HOME", str(tmp_path))
    monkeypatch.setattr(webbrowser, "open", opened.append)
    file = Held(run).show()
    assert opened == [file.as_uri()] and file.parent == tmp_path / "exports"
    assert "No word of the prompt is on this page" in file.read_text()


def test_before_there_is_a_record_the_line_is_shown():
    assert Held(None)._repr_html_() == "<p>Held &lt;nothing&gt;</p>"
