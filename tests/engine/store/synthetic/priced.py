"""A synthetic run's scores decided by the policy "priced": one price, a certificate per layer and per head."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
from synthetic.library import DENSE

from routesparse.engine.rows import CandidateScoreRow, FallbackEventRow, RunRecord

PRICED = DENSE - 2  # policy "priced": the floor at the price
PRICE, TAU_LAYER, TAU_HEAD = 0.3, 0.7, 0.4


def priced(record: RunRecord, raised: tuple[int, ...] = (1,)) -> RunRecord:
    """The same scores decided by the policy "priced": a floor at the price, a certificate per layer and per head.

    ``raised``: layers whose certificate fails at first, so that all their sparse heads climb.
    """
    scores: dict[tuple[int, ...], list[CandidateScoreRow]] = {}
    for row in record.candidates:
        scores.setdefault((row.layer, row.segment, row.head), []).append(row)
    groups: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    for unit in scores:
        groups.setdefault(unit[:2], []).append(unit)
    choices = {(c.layer, c.segment, c.head): c for c in record.choices}
    decided, candidates, events, claims, rungs = [], [], [], {}, {}
    for (layer, _), units in groups.items():
        ladders = {unit: _ladder(scores[unit]) for unit in units}
        bounds = [
            float(np.mean([_certified(scores[unit], ladders[unit], rung) for unit in units]))
            for rung in range(3)
        ]
        if layer in raised:
            bounds[0] = min(bounds[0], TAU_LAYER - 0.021)
            bounds[1] = max(bounds[1], TAU_LAYER + 0.012)
        level = next((rung for rung in range(3) if bounds[rung] >= TAU_LAYER), 3)
        rungs.setdefault(layer, []).append(level)
        if level < 3:
            claims.setdefault(layer, []).append(TAU_LAYER if level else min(bounds))
        for unit in units:
            rows, ladder = scores[unit], ladders[unit]
            own = next((k for k in range(3) if _certified(rows, ladder, k) >= TAU_HEAD), 3)
            choice, failed = _priced_choice(choices[unit], rows, ladder, max(own, level), bounds)
            decided.append(choice)
            events += failed
            candidates += [_priced_score(row, rows, choice) for row in rows]
    by_unit = {(c.layer, c.segment, c.head): c for c in decided}
    layers = tuple(
        replace(
            row,
            lower_mass=min(claims.get(row.layer, [None])),
            raised=max(rungs[row.layer]),
            density=float(np.mean([c.density for c in decided if c.layer == row.layer])),
        )
        for row in record.layers
    )
    config = json.loads(record.run.config_json) | {"policy": "priced", "budget": None}
    run = replace(
        record.run,
        policy="priced",
        calibration=None,
        budget=None,
        tau=TAU_HEAD,
        tau_layer=TAU_LAYER,
        price=PRICE,
        gate_threshold=None,
        config_json=json.dumps(config, sort_keys=True),
        density=float(np.mean([c.density for c in decided])),
        sparse_units=sum(c.pattern != "dense" for c in decided),
        expanded_units=sum(c.fallback == "expand" for c in decided),
        dense_fallback_units=sum(c.fallback == "dense" for c in decided),
        dense_router_units=sum(c.pattern == "dense" and c.fallback is None for c in decided),
        over_budget_layers=0,
    )
    return replace(
        record,
        run=run,
        layers=tuple(replace(row, limit_us=None, over_budget=False) for row in layers),
        choices=tuple(decided),
        candidates=tuple(candidates),
        fallbacks=tuple(events),
        audits=tuple(_priced_audit(row, by_unit[row.layer, row.segment, row.head]) for row in record.audits),
    )


def _g(row):
    return min(row.mass, row.recent_mass)


def _ladder(rows):
    """The cheapest candidate that keeps as much as the floor at the price, and the next levels of its family."""
    gate = _g(rows[PRICED])
    first = min((r for r in rows if _g(r) >= gate), key=lambda r: r.kernel_us).candidate
    if rows[first].pattern == "dense":
        return []
    return [r.candidate for r in rows[first : first + 3] if r.pattern == rows[first].pattern]


def _certified(rows, ladder, rung):
    """What a head's certificate says at a rung; a missing rung is dense."""
    return max(0.0, rows[ladder[rung]].mass - 0.03) if rung < len(ladder) else 1.0


def _priced_choice(choice, rows, ladder, state, bounds):
    """The head's choice at the dearer of its own rung and its layer's, and the certificates that failed on the way."""
    final = (ladder[state] if state < len(ladder) else DENSE) if ladder else DENSE
    failed = []
    for test in range(min(state, len(ladder))):
        to = ladder[test + 1] if test + 1 < len(ladder) and state < 3 else DENSE
        own = _certified(rows, ladder, test)
        by_layer = own >= TAU_HEAD
        failed.append(
            FallbackEventRow(
                run_id=choice.run_id,
                batch_index=0,
                layer=choice.layer,
                head=choice.head,
                segment=choice.segment,
                test=test + 1,
                from_candidate=ladder[test],
                lower_mass=bounds[test] if by_layer else own,
                tau=TAU_LAYER if by_layer else TAU_HEAD,
                kind="dense" if to == DENSE else "expand",
                to_candidate=to,
                paid_us=rows[to].kernel_us - rows[ladder[test]].kernel_us,
                scope="layer" if by_layer else "head",
            )
        )
        if to == DENSE:
            break
    row, gate = rows[final], _g(rows[PRICED])
    sparse = final != DENSE
    lower = _certified(rows, ladder, ladder.index(final)) if sparse else None
    made = replace(
        choice,
        candidate=final,
        pattern=row.pattern,
        budget=row.budget,
        density=row.density,
        mass=row.mass,
        recent_mass=row.recent_mass,
        gate_statistic=_g(row),
        lower_mass=lower,
        conformal_lower_mass=None,
        row_lower_mass=max(0.0, row.mass - 0.2) if sparse else None,
        risk=row.risk,
        kernel_us=row.kernel_us,
        tests=len(failed) + sparse if ladder else 0,
        fallback=failed[-1].kind if failed else None,
        reason=f"{failed[-1].kind if failed else 'chosen'}: g {_g(row):.3f}",
        gate_threshold=gate,
    )
    return made, failed


def _priced_score(row, rows, choice):
    gate = _g(rows[PRICED])
    reason = "chosen" if row.candidate == choice.candidate else f"g {_g(row):.3f}"
    return replace(row, admissible=_g(row) >= gate, chosen=row.candidate == choice.candidate, reason=reason)


def _priced_audit(row, choice):
    if choice.pattern == "dense":
        return replace(
            row, mass=1.0, min_mass=1.0, lower_mass=None, covered=None, mean_error=0.0, max_error=0.0
        )
    mass = float(np.clip(choice.mass + 0.004, 0, 1))
    error = 0.3 * (1 - mass)
    return replace(
        row,
        mass=mass,
        min_mass=max(0.0, mass - 0.3),
        lower_mass=choice.lower_mass,
        covered=mass >= choice.lower_mass,
        mean_error=error,
        max_error=4 * error,
        bound_paper=6.2 * (1 - mass),
        bound_tight=4 * (1 - mass),
    )
