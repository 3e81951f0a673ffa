"""Which tuned prices keep their target on other kinds of prompts, as SVG without a script; colours are classes."""

from __future__ import annotations

from html import escape

from routesparse.engine.results.shift import KEPT, Goal, cell, headline

_LEFT, _TOP, _WIDTH, _ROW = 236, 30, 980, 64
_CLASSES = dict(zip(KEPT, ("kept", "doubted", "missed"), strict=True))

STYLE = (
    "svg .kept{fill:var(--green)}svg .doubted{fill:var(--amber)}svg .missed{fill:var(--red)}"
    "svg .kept,svg .doubted,svg .missed{fill-opacity:.2}svg .own{fill:none;stroke:var(--ink);stroke-width:1.6}"
)


def shift_picture(goal: Goal) -> str:
    """Prices down, kinds of text or question across; three lines in a cell, framed where the price was tuned."""
    domains = goal.domains
    wide = (_WIDTH - _LEFT) / len(domains)
    height = _TOP + _ROW * len(goal.prices) + 4
    parts = [
        f'<text x="{_LEFT + wide * (place + 0.5):.1f}" y="20" text-anchor="middle">used on {escape(domain)}</text>'
        for place, domain in enumerate(domains)
    ]
    for down, one in enumerate(goal.prices):
        top = _TOP + _ROW * down
        parts.append(
            f'<text x="0" y="{top + 26}" font-weight="650">{escape(one.name)}</text>'
            f'<text x="0" y="{top + 44}" font-size="11">{escape(one.told_short)}</text>'
        )
        for use in one.uses:
            left = _LEFT + wide * domains.index(use.domain)
            box = f'x="{left + 2:.1f}" y="{top + 2}" width="{wide - 4:.1f}" height="{_ROW - 4}"'
            parts.append(f'<rect class="{_CLASSES[goal.kept(use)]}" {box}/>')
            parts += [f'<rect class="own" {box}/>'] if use.own else []
            parts += [
                f'<text x="{left + wide / 2:.1f}" y="{top + 20 + 17 * line}" text-anchor="middle">{escape(told)}</text>'
                for line, told in enumerate(cell(goal, use))
            ]
    return (
        f'<svg role="img" aria-label="{escape(headline(goal))} The table below has the numbers." width="{_WIDTH}" '
        f'height="{height}" viewBox="0 0 {_WIDTH} {height}"><g font-size="12">{"".join(parts)}</g></svg>'
    )
