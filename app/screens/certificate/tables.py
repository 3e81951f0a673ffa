"""The tables of a certificate: its worst heads with their worst rows, and its layers."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import pandas as pd

from routesparse.app.ui import glossary, numbers
from routesparse.app.ui.tables import framed
from routesparse.engine.certificate_rows import CertificateRow, NamedRow
from routesparse.engine.export import certificate_words
from routesparse.engine.export.certificate_words import lower, upper

MOST = 12


def worst(heads: pd.DataFrame) -> pd.DataFrame:
    """The heads of the largest mean output error, the worst first."""
    order = heads.sort_values(["mean_error", "largest_error"], ascending=False, kind="stable")
    return order.head(MOST)


def worst_html(heads: pd.DataFrame, row: CertificateRow) -> str:
    """A row a head: its error with the worst token drawn, and what a plan keeps of it."""
    planned = heads["mass"].notna().any()
    prompt = '<th class="l">prompt</th>' if row.batch > 1 else ""
    head = f'{prompt}<th class="l">head</th><th>worst row</th><th>its token</th>{_heads(planned)}'
    body = []
    for one in heads.itertuples():
        number = f'<td class="l">{one.batch_index + 1}</td>' if row.batch > 1 else ""
        body.append(
            f'<tr>{number}<td class="l">layer {one.layer}, head {one.head}</td>'
            f"<td>{one.largest_error:.3g}</td><td>{one.worst_position:,}</td>{_cells(one, planned)}</tr>"
        )
    return framed(f"<tr>{head}</tr>{''.join(body)}")


def layers_html(layers: pd.DataFrame) -> str:
    """A row a layer, its heads pooled."""
    planned = layers["mass"].notna().any()
    head = f'<th class="l">layer</th>{_heads(planned)}<th>worst row</th><th title="{_BEYOND}">beyond rounding</th>'
    body = [
        f'<tr><td class="l">{one.layer}</td>{_cells(one, planned)}<td>{one.largest_error:.3g}</td>'
        f"<td>{one.beyond_rounding:,} of {one.rows:,}</td></tr>"
        for one in layers.itertuples()
    ]
    return framed(f"<tr>{head}</tr>{''.join(body)}")


def named_html(named: Sequence[NamedRow]) -> str:
    """The labels of named rows, then their worst tokens with what they read."""
    heads, lines = certificate_words.named_table(named, words=True)
    words, left = (0, 1, 2), ' class="l"'

    def cells(tag: str, line: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{left if place in words else ''}><bdi>{escape(cell)}</bdi></{tag}>"
            for place, cell in enumerate(line)
        )

    return framed(
        "".join(f"<tr>{cells('td' if n else 'th', line)}</tr>" for n, line in enumerate((heads, *lines)))
    )


_BEYOND = escape("Rows drawn whose output differs from exact attention by more than rounding explains")


def _heads(planned: bool) -> str:
    names = f"{glossary.heading('error', 'output_claim')}<th>≤</th>"
    if planned:
        names += f"{glossary.heading('mass', 'retained_mass')}<th>≥</th>"
        names += f"{glossary.heading('largest key', 'hit_rate')}<th>≥</th>"
    return names


def _cells(one: Any, planned: bool) -> str:
    cells = [numbers.small(one.mean_error), upper(one.mean_error_bound)]
    if planned:
        cells += [numbers.mass(one.mass), lower(one.mass_bound)]
        cells += [numbers.share(one.hit_rate), lower(one.hit_rate_bound, True)]
    return "".join(f"<td>{escape(cell)}</td>" for cell in cells)
