"""One unit in words and tables: why this pattern, what every other candidate lacked, what the audit found.

Everything that comes out of a bundle is escaped before it becomes HTML.
"""

from __future__ import annotations

from html import escape

import pandas as pd

from routesparse.app.ui import design, elements, glossary, numbers, reason_words, tables
from routesparse.engine.rows import RunRow
from routesparse.engine.store import frames


def title(choice: pd.Series) -> str:
    """The question that the panel answers."""
    return f"Layer {choice['layer']}, head {choice['head']}: why {design.name(choice['pattern'])}?"


def gate_threshold(choice: pd.Series, run: RunRow) -> float | None:
    """lambda of this unit: its own under the policy "priced", else the run's; None where neither was recorded."""
    own = choice["gate_threshold"]
    return run.gate_threshold if numbers.is_missing(own) else float(own)


def facts_html(choice: pd.Series, run: RunRow) -> str:
    """The numbers that decided."""
    sparse = choice["pattern"] != "dense"
    threshold = gate_threshold(choice, run)
    entropy = choice["entropy"]
    return elements.lines_html(
        [
            ("budget", str(choice["budget"]) if sparse else "all keys"),
            ("kept of the causal area", numbers.share(choice["density"]), "density"),
            (
                "gate statistic g" + ("" if threshold is None else f", λ = {threshold:.3f}"),
                numbers.mass(choice["gate_statistic"]),
                "gate_statistic",
            ),
            (
                "entropy",
                numbers.NOT_MEASURED if numbers.is_missing(entropy) else f"{entropy:.2f} nats",
                "entropy",
            ),
            ("local band", numbers.share(choice["local_band"], 0), "local_band"),
            ("predicted time", numbers.micros(choice["kernel_us"]), "kernel"),
        ]
    )


def fallback_html(events: pd.DataFrame, candidates: pd.DataFrame) -> str:
    """The certificates that failed, in order, and the predicted time that each step added."""
    names = {row.candidate: f"{design.letter(row.pattern)} · {row.budget}" for row in frames.rows(candidates)}
    steps = [
        f"test {row.test}: {escape(names.get(row.from_candidate, '?'))} "
        f"{'left with its layer, whose certificate was' if row.scope == 'layer' else 'certified'} "
        f"{numbers.bound(row.lower_mass)} &lt; {numbers.threshold(row.tau)}; "
        f"{escape(names.get(row.to_candidate, '?'))} replaced it, predicted to take "
        f"{numbers.micros(row.paid_us)} more"
        for row in frames.rows(events)
    ]
    return f'<div class="rs-note">{"<br>".join(steps)}</div>' if steps else ""


def audit_html(choice: pd.Series, run: RunRow) -> str:
    """The dense audit of this unit."""
    if numbers.is_missing(choice["audit_rows"]):
        if choice["pattern"] == "dense":
            return ""
        return (
            '<div class="rs-sub">Not audited. Run the prompt again with audit “rows” to measure this.</div>'
        )
    count = numbers.count(choice["audit_rows"])
    return elements.lines_html(
        [
            ("mass of the worst audited row", numbers.mass(choice["audited_min_mass"])),
            ("output error, relative", numbers.mass(choice["audited_error"], 4), "error"),
            ("error of the worst row", numbers.mass(choice["audited_max_error"], 4)),
            ("its bound", numbers.mass(choice["bound_tight"], 4)),
            ("rows audited", f"all {count} body rows" if run.audit_depth == "full" else f"{count} at random"),
            *(
                []
                if numbers.is_missing(choice["forward_error"])
                else [
                    (
                        "against the dense forward, errors of earlier layers included",
                        numbers.mass(choice["forward_error"], 4),
                    )
                ]
            ),
        ]
    )


def candidates_html(candidates: pd.DataFrame) -> str:
    """The candidate table; the chosen row is marked, the rest say why not."""
    heading = glossary.heading
    heads = [
        *("candidate", "outcome", heading("kept", "density"), heading("retained mass", "retained_mass")),
        *(
            heading("g", "gate_statistic"),
            heading("certified mass", "certificate"),
            heading("u", "disagreement"),
        ),
        *(heading("risk", "risk"), heading("predicted µs", "kernel")),
        heading("g\u00a0≥\u00a0λ", "gate_threshold"),
    ]
    lines = []
    for row in frames.rows(candidates):
        tested = row.pattern != "dense" and not numbers.is_missing(row.lower_mass)
        lines.append(
            (
                f'<td class="l">{escape(f"{design.letter(row.pattern)} · {row.budget}")}</td>',
                f'<td class="l w{"" if row.chosen else " no"}">{escape(reason_words.shown(row.reason))}</td>',
                numbers.share(row.density),
                *map(numbers.mass, (row.mass, row.gate_statistic)),
                numbers.bound(row.lower_mass) if tested else "–",
                *map(numbers.mass, (row.disagreement, row.risk)),
                numbers.whole_micros(row.kernel_us),
                "yes" if row.admissible else "no",
            )
        )
    return tables.table(heads, lines, (0, 1), [i for i, chosen in enumerate(candidates["chosen"]) if chosen])
