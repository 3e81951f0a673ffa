"""What a notebook shows of a routed prompt or of a certificate: one line, a small map with the verdict, rows, the page.

A map is SVG that needs no plotting library: a cell a head of a layer, the mean over segments and prompts; grey where
nothing was measured.
"""

from __future__ import annotations

import webbrowser
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from routesparse.engine import paths
from routesparse.engine.errors import InputError
from routesparse.engine.export import certificate_words, palette, report_certificate, report_page
from routesparse.engine.export.report_html import text
from routesparse.engine.rows import RunRecord
from routesparse.engine.store import tables
from routesparse.engine.verdict import SIGNS, WORDS, of_record

if TYPE_CHECKING:
    import pandas as pd

    from routesparse.engine.certificate_rows import CertificateRecord

_CELL, _LEFT, _TOP, _FOOT = 13, 30, 18, 22


@dataclass(frozen=True)
class Picture:
    """An SVG that a notebook draws."""

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg


class Shown(ABC):
    """What a notebook shows of something that can be made a record."""

    @abstractmethod
    def record(self) -> RunRecord | CertificateRecord:
        """The rows behind it. Errors: of each class its own."""

    def to_frame(self) -> pd.DataFrame:
        """A row a head of a layer (of a run: in a segment too), with the columns of the bundle's table."""
        return _frame(self.record())

    def plot(self, column: str | None = None) -> Picture:
        """A column of ``to_frame`` as a map, by default the kept area or a certificate's error. Errors: InputError."""
        return _map(self.record(), column)

    def show(self) -> Path:
        """Open the report, one page without a server or a word of the prompt; where it lies."""
        record = self.record()
        if isinstance(record, RunRecord):
            run_id, page = record.run.run_id, report_page.page(record, words=False)
        else:
            run_id, page = record.certificate.run_id, report_certificate.page(record, words=False)
        file = paths.exports() / f"{run_id}.html"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(page, "utf-8")
        webbrowser.open(file.as_uri())
        return file

    def _repr_html_(self) -> str:
        try:
            record = self.record()
        except (ValueError, InputError):  # nothing to show yet, which the line says
            return f"<p>{text(repr(self))}</p>"
        if isinstance(record, RunRecord):
            found = of_record(record)
            level, word, sentence = found.level, WORDS[found.level], found.sentence
        else:
            row = record.certificate
            level = certificate_words.level(row.verdict, row.tolerance)
            word, sentence = certificate_words.word(row.verdict, row.tolerance), row.sentence
        told = f"<b>{SIGNS[level]} {text(word)}.</b> {text(sentence)}."
        drawn = _map(record, None).svg if len(_frame(record)) else ""
        return f'<p style="border-left:5px solid {palette.LIGHT.levels[level]};padding-left:9px">{told}</p>{drawn}'


def _frame(record: RunRecord | CertificateRecord) -> pd.DataFrame:
    if isinstance(record, RunRecord):
        return tables.to_arrow("head_choice", record.choices).to_pandas()
    claims = [claim for claim in record.claims if claim.scope == "head"]
    return tables.to_arrow("claim", claims).to_pandas()


def _map(record: RunRecord | CertificateRecord, column: str | None) -> Picture:
    found = _frame(record)
    column = column or ("density" if isinstance(record, RunRecord) else "mean_error")
    numeric = [name for name in found.select_dtypes(("number", "bool")) if name not in ("layer", "head")]
    if column not in numeric:
        raise InputError(f"no map of {column!r}; choose one of {', '.join(numeric)}")
    values = found.astype({column: float}).groupby(["layer", "head"])[column].mean()
    least, most = values.min(), values.max()
    theme, heads = palette.LIGHT, found["head"].unique()
    rows = {layer: place for place, layer in enumerate(sorted(found["layer"].unique()))}
    width, height = _LEFT + _CELL * (max(heads, default=0) + 1), _TOP + _CELL * len(rows) + _FOOT
    cells = []
    for (layer, head), value in values.items():  # type: ignore[misc]
        known = value == value  # NaN is not measured
        color = palette.scale_color(theme, (value - least) / ((most - least) or 1)) if known else theme.null
        tip = f"layer {layer}, head {head}: {f'{value:.4g}' if known else 'not measured'}"
        cells.append(
            f'<rect x="{_LEFT + _CELL * head}" y="{_TOP + _CELL * rows[layer]}" width="{_CELL - 1}" '
            f'height="{_CELL - 1}" fill="{color}"><title>{tip}</title></rect>'
        )
    marks = [f'<text x="{_LEFT}" y="12">{text(column)}, layer ↓ head →</text>']
    marks += [
        f'<text x="2" y="{_TOP + _CELL * place + 10}">{layer}</text>'
        for layer, place in rows.items()
        if not place % 4
    ]
    marks.append(f'<text x="{_LEFT}" y="{height - 7}">pale {least:.3g}, dark {most:.3g}</text>')
    return Picture(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{max(width, 240)}" height="{height}" font-size="11" '
        f'font-family="sans-serif" fill="{theme.ink}" style="background:{theme.panel}">{"".join(cells + marks)}</svg>'
    )
