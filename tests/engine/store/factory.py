"""A synthetic run that looks like a real one; only tests and the screenshot script use it.

Numbers are invented but consistent: nested budgets, mass that grows with density, a gate at lambda, up to
three certificate tests, fallbacks, an audit, probe heatmaps with sinks, columns, slashes and a diagonal.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from routesparse.engine.certificate_rows import CertificateRecord, CertificateRow, ClaimRow, NamedRow
from routesparse.engine.config import RouterConfig
from routesparse.engine.record import masks
from routesparse.engine.rows import (
    AnswerRow,
    AuditRow,
    BlockReadsRow,
    CandidateScoreRow,
    ContinuationRow,
    FallbackEventRow,
    HeadChoiceRow,
    LayerRow,
    ProbeRow,
    PromptRow,
    RunRecord,
    RunRow,
    WorstRow,
)

# pattern, budget, density at 16,384 tokens
LIBRARY: tuple[tuple[str, str, float], ...] = (
    ("a_shape", "sink 128, local 512", 0.010),
    ("a_shape", "sink 128, local 1,024", 0.018),
    ("a_shape", "sink 128, local 2,048", 0.034),
    ("a_shape", "sink 128, local 4,096", 0.066),
    ("vertical_slash", "64 columns, 256 diagonals", 0.021),
    ("vertical_slash", "128 columns, 512 diagonals", 0.040),
    ("vertical_slash", "256 columns, 1,024 diagonals", 0.075),
    ("vertical_slash", "512 columns, 2,048 diagonals", 0.140),
    ("vertical_slash", "1,000 columns, 4,096 diagonals", 0.260),
    ("vertical_slash", "2,000 columns, 6,096 diagonals", 0.400),
    ("block_sparse", "8 blocks", 0.050),
    ("block_sparse", "16 blocks", 0.095),
    ("block_sparse", "32 blocks", 0.180),
    ("block_sparse", "48 blocks", 0.260),
    ("block_sparse", "64 blocks", 0.330),
    ("block_sparse", "96 blocks", 0.480),
    ("floor", "blocks that hold 0.8 % of the rows or more", 0.070),
    ("floor", "blocks that hold 0.4 % of the rows or more", 0.120),
    ("floor", "blocks that hold 0.2 % of the rows or more", 0.210),
    ("floor", "blocks that hold 0.1 % of the rows or more", 0.340),
    ("dense", "all keys", 1.0),
)
DENSE = len(LIBRARY) - 1
TAU = 0.9
GATE = 0.925
PRICED = DENSE - 2  # policy "priced": the floor at the price
PRICE, TAU_LAYER, TAU_HEAD = 0.3, 0.7, 0.4
MOST_CELLS = 512  # of a unit's block reads
PROBE_KINDS = (64, 64, 128, 16)  # recent, routing, certificate, boundary rows


def make_record(
    run_id: str = "3f9a1c20d4e5b678",
    *,
    name: str = "needles-16k.txt",
    domain: str | None = "needles",
    layers: int = 8,
    heads: int = 8,
    segments: int = 2,
    tokens: int = 16_384,
    hardness: float = 0.5,
    seed: int = 0,
    probe: bool = True,
    probe_columns: int = 128,
    probe_kinds: tuple[int, int, int, int] = PROBE_KINDS,
    audit: bool = True,
    dense: bool = True,
    prompt: bool = True,
) -> RunRecord:
    """One run; ``hardness`` in [0, 1] moves mass from local rows to the whole prompt."""
    random = np.random.default_rng([seed, int(hashlib.sha256(run_id.encode()).hexdigest()[:8], 16)])
    choices, candidates, fallbacks, audits, probes, layer_rows = [], [], [], [], [], []
    worst, reads, aside = [], [], np.random.default_rng([seed, layers, heads, tokens])
    body = tokens // segments
    for layer in range(layers):
        kernel_us = 0.0
        for head in range(heads):
            taste = random.dirichlet([1.2, 2.2, 1.8, 0.8])
            for segment in range(segments):
                key = {"run_id": run_id, "batch_index": 0, "layer": layer, "head": head, "segment": segment}
                unit = _unit(key, taste, hardness, body, segment, segment == segments - 1, random)
                choices.append(unit[0])
                candidates.extend(unit[1])
                fallbacks.extend(unit[2])
                kernel_us += unit[0].kernel_us
                if audit:
                    audits.append(_audit(key, unit[0], random))
                    if unit[0].pattern != "dense":
                        reads.append(_block_reads(key, taste, audits[-1].mass, unit[0], tokens, aside))
                        worst.extend(_worst_rows(key, audits[-1], unit[0], reads[-1], aside))
                if probe:
                    columns = probe_columns * (segment + 1) // segments
                    probes.append(_probe(key, taste, (columns, probe_kinds), body, segment, random))
        dense_us = heads * segments * 1450.0
        layer_rows.append(
            LayerRow(
                run_id=run_id,
                layer=layer,
                limit_us=0.35 * dense_us,
                planned_us=kernel_us + 420.0,
                dense_us=dense_us,
                probe_us=310.0 + 40 * random.random(),
                index_us=90.0 + 20 * random.random(),
                route_us=30.0 + 5 * random.random(),
                kernel_us=kernel_us * (0.96 + 0.1 * random.random()),
                density=float(np.mean([c.density for c in choices if c.layer == layer])),
                over_budget=kernel_us + 420.0 > 0.35 * dense_us,
            )
        )
    run = _run(
        run_id, name, domain, layers, heads, segments, tokens, seed, choices, audits, layer_rows, dense
    )
    return RunRecord(
        run=run,
        layers=tuple(layer_rows),
        choices=tuple(choices),
        candidates=tuple(candidates),
        fallbacks=tuple(fallbacks),
        audits=tuple(audits),
        worst_rows=tuple(worst),
        block_reads=tuple(reads),
        probes=tuple(probes),
        answers=_answers(run_id, prompt) if dense else (),
        continuations=_continuations(run_id, prompt) if dense else (),
        prompt=_prompt(run_id, tokens) if prompt else None,
    )


def rewrite(path: Path, table: str, **columns: object) -> None:
    """Set columns of a written bundle's table to one value in all rows, and mend the checksum, as a forger would."""
    file = path / f"{table}.parquet"
    data = pq.read_table(file)
    for name, value in columns.items():
        place = data.schema.get_field_index(name)
        field = data.schema.field(place)
        data = data.set_column(place, field, pa.array([value] * len(data), field.type))
    pq.write_table(data, file)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"][file.name]["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))


def rename(record: RunRecord, run_id: str) -> RunRecord:
    """The same run under another id: cheap copies for tests with many runs."""

    def renamed(rows):
        return tuple(replace(row, run_id=run_id) for row in rows)

    return RunRecord(
        run=replace(record.run, run_id=run_id),
        layers=renamed(record.layers),
        choices=renamed(record.choices),
        candidates=renamed(record.candidates),
        fallbacks=renamed(record.fallbacks),
        audits=renamed(record.audits),
        worst_rows=renamed(record.worst_rows),
        block_reads=renamed(record.block_reads),
        probes=renamed(record.probes),
        answers=renamed(record.answers),
        continuations=renamed(record.continuations),
        prompt=replace(record.prompt, run_id=run_id) if record.prompt else None,
    )


def small_record() -> RunRecord:
    """One layer of two heads with neither audit, probe nor text: what a server keeps of a request."""
    return make_record(
        layers=1,
        heads=2,
        segments=1,
        tokens=2048,
        audit=False,
        dense=False,
        probe=False,
        prompt=False,
    )


def served(record: RunRecord, created_at: str, one_in: int = 50, **changes: object) -> RunRecord:
    """The same run as a request that a server recorded, without a drift alarm unless ``changes`` has one."""
    config = json.loads(record.run.config_json) | {"served": {"by": "vllm", "one_in": one_in}}
    drift = {"drift_alarm": False, "drift_distance": 1.0, "drift_p": 0.01}
    named = {"created_at": created_at, "config_json": json.dumps(config)}
    return replace(record, run=replace(record.run, **(named | drift | changes)))


def fleet(
    days: int, per_day: int, last: str = "2026-11-19", model: str = "demo", bad: int = 1
) -> Iterator[RunRecord]:
    """Requests of a model on so many days up to ``last``; ``bad`` days before it, most keep more and raise an alarm."""
    made = small_record()
    for back in range(days):
        day = (datetime.date.fromisoformat(last) - datetime.timedelta(back)).isoformat()
        for place in range(per_day):
            is_odd = back == bad and place % 10 > 0
            yield served(
                rename(made, f"{day.replace('-', '')}-{zlib.crc32(model.encode()):08x}-{place:04d}"),
                f"{day}T{place % 24:02d}:{place // 24:02d}:00+00:00",
                model=model,
                tokens=2048 + 512 * (place % 9),
                density=0.6 if is_odd else 0.2 + 0.01 * (place % 5),
                drift_alarm=is_odd,
            )


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
            candidates += [_priced_score(row, rows, choice, failed) for row in rows]
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
    if failed:
        whose = "the layer" if failed[0].scope == "layer" else "the head"
        reason = (
            f"{'expanded' if sparse else 'dense by fallback'}: {whose}'s certificate was "
            f"{failed[0].lower_mass:.3f} < {failed[0].tau:.3f}"
        )
    elif not sparse:
        reason = f"dense by the router: at price {PRICE:g} sparse costs as much as dense"
    elif final == PRICED:
        reason = f"the floor at price {PRICE:g}: g {gate:.3f}"
    else:
        reason = (
            f"cheaper than the floor at price {PRICE:g} and keeps as much, g >= {gate:.3f}: g {_g(row):.3f}"
        )
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
        reason=reason,
        gate_threshold=gate,
    )
    return made, failed


def _priced_score(row, rows, choice, failed):
    gate = _g(rows[PRICED])
    left = next((event for event in failed if event.from_candidate == row.candidate), None)
    if row.candidate == choice.candidate:
        reason = "chosen"
    elif left is not None and left.scope == "layer":
        reason = "passed, but its layer needed larger budgets"
    elif left is not None:
        reason = f"certificate {left.lower_mass:.3f} < τ {TAU_HEAD:.3f}"
    elif _g(row) < gate:
        reason = f"mass too low: g {_g(row):.3f} < {gate:.3f}"
    else:
        reason = f"dearer by {row.kernel_us - choice.kernel_us:.0f} us"
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


def _unit(key, taste, hardness, body, segment, is_last, random):
    """Scores, the choice of policy "certified" and its fallbacks for one unit."""
    families = ("a_shape", "vertical_slash", "block_sparse", "floor")
    difficulty = float(np.clip(random.normal(hardness, 0.25), 0.02, 1.1))
    masses, recents, costs = [], [], []
    for pattern, _, density in LIBRARY:
        if pattern == "dense":
            masses.append(1.0)
            recents.append(1.0)
        else:
            affinity = 0.4 + taste[families.index(pattern)]
            reach = 1.0 - np.exp(-(density**0.55) * 9.0 * affinity / (0.35 + difficulty))
            masses.append(float(min(0.9995, reach)))
            recents.append(float(np.clip(reach + random.normal(0.0, 0.015), 0.02, 0.9995)))
        costs.append(18.0 + 1450.0 * density * (1.1 if pattern == "vertical_slash" else 1.0))
    spread = float(abs(random.normal(0.02, 0.012)) + 0.002)
    gates = [min(m, r) for m, r in zip(masses, recents, strict=True)]
    order = sorted((i for i in range(len(LIBRARY)) if gates[i] >= GATE), key=lambda i: costs[i])
    tested, events, chosen = {}, [], order[0]
    for test, index in enumerate(order[:3], start=1):
        if index == DENSE:
            chosen = DENSE
            break
        lower = float(np.clip(masses[index] - 0.026 - abs(random.normal(0, 0.012)), 0, 1))
        tested[index] = lower
        chosen = index
        if lower >= TAU:
            break
        step = order[test] if test < 3 and test < len(order) else DENSE
        events.append(
            FallbackEventRow(
                **key,
                test=test,
                from_candidate=index,
                lower_mass=lower,
                tau=TAU,
                kind="dense" if step == DENSE else "expand",
                to_candidate=step,
                paid_us=costs[step] - costs[index],
            )
        )
        chosen = step
        if step == DENSE:
            break
    pattern, budget, density = LIBRARY[chosen]
    sparse = pattern != "dense"
    fallback = events[-1].kind if events else None
    choice = HeadChoiceRow(
        **key,
        first_token=segment * body,
        tokens=body,
        body_tokens=body - (128 if is_last else 0),
        candidate=chosen,
        pattern=pattern,
        budget=budget,
        density=density,
        mass=masses[chosen],
        recent_mass=recents[chosen],
        gate_statistic=gates[chosen],
        lower_mass=tested.get(chosen) if sparse else None,
        conformal_lower_mass=max(0.0, gates[chosen] - 0.043) if sparse else None,
        row_lower_mass=max(0.0, masses[chosen] - 0.11) if sparse else None,
        disagreement=spread,
        entropy=float(3.0 + 2.5 * difficulty + random.normal(0, 0.2)),
        local_band=float(np.clip(taste[0] + 0.2, 0, 1)),
        agreement=float(np.clip(1 - 4 * spread, 0, 1)),
        risk=1 - gates[chosen] + 0.5 * spread,
        kernel_us=costs[chosen],
        tests=len(tested),
        fallback=fallback,
        reason=_reason(chosen, gates, costs, tested, fallback, len(order)),
    )
    rows = [
        CandidateScoreRow(
            **key,
            candidate=index,
            pattern=LIBRARY[index][0],
            budget=LIBRARY[index][1],
            density=LIBRARY[index][2],
            mass=masses[index],
            recent_mass=recents[index],
            disagreement=0.0 if index == DENSE else spread,
            predicted_error=None,
            risk=0.0 if index == DENSE else 1 - gates[index] + 0.5 * spread,
            kernel_us=costs[index],
            admissible=gates[index] >= GATE,
            chosen=index == chosen,
            reason=_why_not(index, chosen, gates, costs, tested),
        )
        for index in range(len(LIBRARY))
    ]
    return choice, rows, events


def _reason(chosen, gates, costs, tested, fallback, admissible):
    pattern, budget, _ = LIBRARY[chosen]
    label = f"{pattern.replace('_', '-')} ({budget})"
    if pattern == "dense" and fallback:
        return f"{len(tested)} certificates stayed below τ {TAU:.2f}; the head fell back to dense."
    if pattern == "dense":
        return f"No sparse candidate reaches g ≥ {GATE:.3f}; the router keeps the head dense."
    lead = f"{label} is the cheapest of {admissible} candidates with g ≥ {GATE:.3f}"
    if fallback:
        lead = f"The cheaper choice missed its certificate; expanded to {label}"
    numbers = f"g = {gates[chosen]:.3f}, certified {tested[chosen]:.3f} ≥ {TAU:.2f}, {costs[chosen]:.0f} us"
    return f"{lead}: {numbers}."


def _why_not(index, chosen, gates, costs, tested):
    if index == chosen:
        return "chosen"
    if gates[index] < GATE:
        return f"mass too low: g {gates[index]:.3f} < {GATE:.3f}"
    if index in tested:
        return f"certificate {tested[index]:.3f} < τ {TAU:.2f}"
    return f"dearer by {costs[index] - costs[chosen]:.0f} us"


def _audit(key, choice, random):
    sparse = choice.pattern != "dense"
    mass = float(np.clip(choice.mass + random.normal(0, 0.006), 0, 1)) if sparse else 1.0
    error = (1 - mass) * float(random.uniform(0.15, 0.5))
    return AuditRow(
        **key,
        rows=512,
        mass=mass,
        min_mass=max(0.0, mass - 0.3) if sparse else 1.0,
        lower_mass=choice.lower_mass,
        covered=None if choice.lower_mass is None else mass >= choice.lower_mass,
        mean_error=error,
        max_error=error * 4,
        bound_paper=2 * (1 - mass) * 3.1,
        bound_tight=(1 - mass) * 4.0,
        violations=0,
    )


def _block_reads(key, taste, retained, choice, tokens, random):
    """Cells of KV blocks: sink and a few blocks read by all later rows, the others by a local window."""
    pool = -(-tokens // 64 // MOST_CELLS)
    cells = -(-(choice.first_token + choice.tokens) // (64 * pool))
    place = np.arange(cells)
    reads = np.clip(choice.density * cells / np.maximum(1, cells - place), 0.01, 1) * random.uniform(
        0, 1.4, cells
    )
    kept = random.choice(cells, max(1, int(choice.density * cells)), replace=False)
    reads[kept] = 1
    reads[0] = 1
    mass = 0.02 * random.random(cells) / cells + np.where(place == 0, taste[0], 0.0)
    mass[kept] += taste[1] * random.random(len(kept)) / len(kept)
    mass /= mass.sum()
    lost = mass * (1 - np.clip(reads, 0, 1))
    lost *= (1 - retained) / max(lost.sum(), 1e-9)
    return BlockReadsRow(
        **key,
        cells=cells,
        pool=pool,
        reads=np.ceil(255 * np.clip(reads, 0, 1)).astype(np.uint8).tobytes(),
        mass=np.maximum(mass, lost).astype("<f2").tobytes(),
        lost=lost.astype("<f2").tobytes(),
    )


def _worst_rows(key, audit, choice, reads, random):
    """Four rows of the unit's body; what they lost is drawn from the blocks before them that are hardly read."""
    positions = choice.first_token + np.sort(random.choice(choice.body_tokens - 512, 4, replace=False)) + 512
    for rank, position in enumerate(positions[random.permutation(4)]):
        seen = np.frombuffer(reads.reads, np.uint8)[: position // 64 // reads.pool]
        blocks = np.argsort(seen + random.random(len(seen)))[:5] * reads.pool
        mass = min(1.0, audit.min_mass * (1 + 0.04 * rank))
        shares = (1 - mass) * np.array([0.4, 0.2, 0.1, 0.05, 0.02])[: len(blocks)]
        yield WorstRow(
            **key,
            rank=rank,
            position=int(position),
            mass=mass,
            error=audit.max_error * (1 - 0.1 * rank),
            lost_blocks=blocks.astype("<i4").tobytes(),
            lost_mass=shares.astype("<f4").tobytes(),
        )


def _probe(key, taste, shape, body, segment, random):
    """Block mass of the probe rows, 272 by default: sink, a few columns, slashes, the diagonal."""
    columns, groups = shape
    first = segment * body
    end = first + body
    recent = np.arange(end - groups[0], end)
    others = [first + np.sort(random.choice(body - groups[0], n, replace=False)) for n in groups[1:]]
    positions = np.concatenate([recent, *others]).astype("<i4")
    kinds = np.repeat(np.arange(4), groups).astype(np.uint8)
    order = np.argsort(positions, kind="stable")
    positions, kinds = positions[order], kinds[order]
    block = max(1, end // columns)
    x = np.arange(columns)[None, :]
    own = (positions // block)[:, None]
    distance = own - x
    mass = taste[0] * np.exp(-np.maximum(distance, 0) / 2.0)
    mass = mass + 0.5 * (x == 0) + 0.02 * random.random((len(positions), columns))
    for column in random.choice(columns, 4, replace=False):
        mass = mass + taste[1] * 0.6 * (x == column)
    for offset in random.choice(max(2, columns // 2), 2, replace=False):
        mass = mass + taste[2] * 0.7 * (distance == offset)
    mass = np.where(distance >= 0, mass, 0.0)
    mass = mass / mass.sum(axis=1, keepdims=True)
    return ProbeRow(
        **key,
        rows=len(positions),
        columns=columns,
        pool=max(1, end // 64 // columns),
        scale=1.0,
        positions=positions.tobytes(),
        kinds=kinds.tobytes(),
        mass=mass.astype("<f2").tobytes(),
        masks=_masks(mass, distance),
        mask_columns=columns,
        mask_pool=max(1, end // 64 // columns),
    )


def _masks(mass, distance):
    """Level maps like a builder's: local blocks by distance, the other families by mass; sink and diagonal always."""
    rank = np.argsort(np.argsort(-mass, axis=1), axis=1) / np.maximum(
        1, (distance >= 0).sum(1, keepdims=True)
    )
    near = np.maximum(distance, 0) / distance.shape[1]
    levels = []
    for family in dict.fromkeys(pattern for pattern, _, _ in LIBRARY if pattern != "dense"):
        densities = [density for pattern, _, density in LIBRARY if pattern == family]
        key = near if family == "a_shape" else rank
        level = np.searchsorted(densities, key).astype(np.uint8)
        level[level == len(densities)] = masks.NEVER
        level[:, 0] = 0
        level[distance == 0] = 0
        level[distance < 0] = masks.NEVER
        levels.append(level)
    return masks.pack(np.stack(levels)).tobytes()


def _run(run_id, name, domain, layers, heads, segments, tokens, seed, choices, audits, layer_rows, dense):
    sparse = [c for c in choices if c.pattern != "dense"]
    covered = [a.covered for a in audits if a.covered is not None]
    kernel_ms = sum(row.kernel_us for row in layer_rows) / 1000
    probe_ms = sum(row.probe_us for row in layer_rows) / 1000
    config = RouterConfig(policy="certified", segment_tokens=tokens // segments, seed=seed)
    return RunRow(
        run_id=run_id,
        created_at=f"2026-11-20T0{seed % 10}:12:31Z",
        model="demo",
        model_revision=hashlib.sha256(b"demo").hexdigest()[:16],
        tokenizer_hash=hashlib.sha256(b"tokenizer").hexdigest()[:16],
        calibration="prose",
        profile="cpu-2",
        policy="certified",
        tau=TAU,
        gate_threshold=GATE,
        confidence=0.95,
        budget="0.35",
        probe_mode="exact",
        seed=seed,
        config_json=json.dumps(config.to_dict(), sort_keys=True),
        prompt_name=name,
        prompt_sha256=hashlib.sha256(name.encode()).hexdigest(),
        domain=domain,
        batch=1,
        tokens=tokens,
        layers=layers,
        heads=heads,
        kv_heads=max(1, heads // 4),
        head_dim=64,
        segments=segments,
        block_q=128,
        block_k=64,
        device="CPU, 2 cores",
        dtype="float32",
        versions_json=json.dumps({"routesparse": "0.1.0", "torch": "2.13.0"}),
        git_commit=None,
        routed=True,
        probe_ms=probe_ms,
        index_ms=1.1,
        route_ms=0.4,
        kernel_ms=kernel_ms,
        total_ms=kernel_ms + probe_ms + 2900.0,
        dense_ms=(layers * heads * segments * 1.45 + 2900.0) if dense else None,
        density=float(np.mean([c.density for c in choices])),
        units=len(choices),
        sparse_units=len(sparse),
        expanded_units=sum(c.fallback == "expand" for c in choices),
        dense_fallback_units=sum(c.fallback == "dense" for c in choices),
        dense_router_units=sum(c.pattern == "dense" and c.fallback is None for c in choices),
        over_budget_layers=sum(row.over_budget for row in layer_rows),
        audit_depth="rows" if audits else "none",
        audit_rows=512 if audits else 0,
        coverage=float(np.mean(covered)) if covered else None,
        mean_error=float(np.mean([a.mean_error for a in audits])) if audits else None,
        max_error=max(a.max_error for a in audits) if audits else None,
        top1_agreement=1.0 if dense else None,
        logit_error=0.02 if dense else None,
        kl_nats=0.0021 if dense else None,
    )


def _answers(run_id, keep_text):
    """Next tokens on which both sides agree but for the fifth."""
    tokens = (
        (4417, "44", 0.81, 0.79),
        (12, " the", 0.07, 0.08),
        (9, "4", 0.04, 0.05),
        (77, "17", 0.02, 0.02),
    )
    tokens += ((5, "\n", 0.011, 0.004), (31, " a", 0.006, 0.012))
    routed_ranks = (1, 2, 3, 4, 6, 5)
    return tuple(
        AnswerRow(
            run_id, 0, token, text if keep_text else None, dense, routed, place + 1, routed_ranks[place]
        )
        for place, (token, text, dense, routed) in enumerate(tokens)
    )


def _continuations(run_id, keep_text):
    """Three tokens of which the last differs."""
    texts = ("44 the", "44 the4", "44 the a") if keep_text else (None, None, None)
    return (ContinuationRow(run_id, 0, 3, 2, *texts),)


def _prompt(run_id, tokens):
    words = (
        "The ledger of the harbour lists vessel, tonnage and master. ",
        "A needle: the code of Oslo is 4417. ",
    )
    text = "".join(words[1] if i % 97 == 41 else words[0] for i in range(tokens // 12))
    blocks = tokens // 64
    starts = np.linspace(0, len(text), blocks + 1).astype("<i4")
    return PromptRow(
        run_id=run_id,
        text=text,
        block_starts=starts.tobytes(),
        token_starts=np.linspace(0, len(text), tokens + 1).astype("<i4").tobytes(),
    )


def make_certificate(run_id="20261101-120000-ce47f1ca", *, layers=4, heads=4, plan="window=256", **changes):
    """A certificate of a plan (None: of the function alone) whose last head of the last layer loses most."""
    names = {"run_id": run_id, "created_at": "2026-11-01T12:00:00+00:00", "plan": plan}
    row = CertificateRow(
        **names,
        function="sdpa" if plan is None else "routesparse",
        model="demo",
        model_revision="5d1c0ffee0ddba11",
        tokenizer_hash="70ce2120ffee0dd1",
        prompt_name="ledger.txt",
        prompt_sha256=hashlib.sha256(b"ledger").hexdigest(),
        batch=1,
        tokens=4096,
        layers=layers,
        heads=heads,
        kv_heads=heads // 2,
        head_dim=64,
        device="Intel(R) Xeon(R) Processor",
        dtype="float32",
        versions_json=json.dumps({"torch": "2.13.0"}),
        git_commit=None,
        seed=0,
        config_json=json.dumps({} if plan is None else {"method": plan}),
        sampled_rows=64,
        confidence=0.95,
        mass_level=0.5,
        tolerance=None,
        most_beyond=0.01,
        dense_layers=0,
        verdict="exact" if plan is None else "differs",
        sentence="equal to exact attention up to rounding"
        if plan is None
        else "rows differ from exact attention",
        findings_json=json.dumps(["at 95% confidence most rows are close"]),
    )
    row = replace(row, **changes)
    asked = (row.plan, row.tolerance)
    every = [(layer, head) for layer in range(layers) for head in range(heads)]
    worst = len(every)
    claims = [_claim(run_id, "pass", 0.2, 64 * worst, *asked)]
    claims += [
        _claim(run_id, "layer", min(0.1 * (n + 1), 0.9), 64 * heads, *asked, layer=n) for n in range(layers)
    ]
    claims += [
        _claim(
            run_id,
            "head",
            0.5 * (n + 1) / worst,
            64,
            *asked,
            batch_index=0,
            layer=layer,
            head=head,
            worst=100 + n,
        )
        for n, (layer, head) in enumerate(every)
    ]
    named = [_named(row, token, layers * heads) for token in range(4088, 4096)]
    return CertificateRecord(row, tuple(claims), tuple(named))


def _named(certificate, token, rows):
    """A token of "last:8"; the last one loses most."""
    plan = certificate.plan
    error = 1e-7 if plan is None else 0.01 * (token - 4087)
    far = 0 if plan is None else rows // 4
    return NamedRow(
        run_id=certificate.run_id,
        label="last:8",
        batch_index=0,
        position=token,
        text=f"w{token}",
        rows=rows,
        mean_error=error,
        largest_error=2 * error,
        worst_layer=min(1, certificate.layers - 1),
        worst_head=min(2, certificate.heads - 1),
        nonfinite_rows=0,
        beyond_rounding=far,
        beyond_tolerance=None if certificate.tolerance is None else far,
        mass=None if plan is None else 1 - error,
        hit_rate=None if plan is None else 0.75,
    )


def _claim(
    run_id, scope, error, rows, plan, tolerance, *, batch_index=None, layer=None, head=None, worst=None
):
    planned = {"mass": 1 - error, "mass_bound": 0.95 - error, "low_rows": 3, "low_rows_bound": 0.12}
    planned |= {"hit_rate": 0.9, "hit_rate_bound": 0.8, "plan_error": error, "disagreement": 1e-6}
    error = 1e-7 if plan is None else error
    return ClaimRow(
        run_id=run_id,
        scope=scope,
        batch_index=batch_index,
        layer=layer,
        head=head,
        worst_position=worst,
        rows=rows,
        mean_error=error,
        mean_error_bound=min(1.0, error + 0.05),
        largest_error=2 * error,
        share_within=0.05 ** (1 / rows),
        nonfinite_rows=0,
        beyond_rounding=0 if plan is None else rows // 2,
        beyond_rounding_bound=0.05 if plan is None else 0.6,
        beyond_tolerance=None if tolerance is None else 0 if plan is None else rows // 4,
        beyond_tolerance_bound=None if tolerance is None else 0.005 if plan is None else 0.35,
        **({} if plan is None else planned),
    )
