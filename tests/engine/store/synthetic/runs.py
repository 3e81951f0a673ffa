"""A whole run under policy "certified", the same run under another id, and a forger's change to a written bundle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from synthetic.audits import audit_row, block_reads_row, worst_rows
from synthetic.library import GATE, TAU
from synthetic.probes import probe_row
from synthetic.unit import decide_unit

from routesparse.engine.config import RouterConfig
from routesparse.engine.rows import (
    AnswerRow,
    ContinuationRow,
    LayerRow,
    LossRow,
    PromptRow,
    RunRecord,
    RunRow,
    TracedRow,
)

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
    traced: bool = True,
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
                unit = decide_unit(key, taste, hardness, body, segment, segment == segments - 1, random)
                choices.append(unit[0])
                candidates.extend(unit[1])
                fallbacks.extend(unit[2])
                kernel_us += unit[0].kernel_us
                if audit:
                    audits.append(audit_row(key, unit[0], random))
                    if unit[0].pattern != "dense":
                        reads.append(block_reads_row(key, taste, audits[-1].mass, unit[0], tokens, aside))
                        worst.extend(worst_rows(key, audits[-1], unit[0], reads[-1], aside))
                if probe:
                    columns = max(1, min(probe_columns, tokens // 64) * (segment + 1) // segments)
                    probes.append(probe_row(key, taste, (columns, probe_kinds), body, segment, random))
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
        choices=_with_losses(choices, run.loss_nats),
        candidates=tuple(candidates),
        fallbacks=tuple(fallbacks),
        audits=tuple(audits),
        worst_rows=tuple(worst),
        block_reads=tuple(reads),
        traced_rows=(TracedRow(run_id, 0, 0, 0, 0, min(700, tokens - 1), 0.9, bytes(4), bytes(4), b"\x01"),)
        * traced,
        probes=tuple(probes),
        answers=_answers(run_id, prompt) if dense else (),
        continuations=_continuations(run_id, prompt) if dense else (),
        losses=_losses(run_id, tokens, dense),
        prompt=_prompt(run_id, tokens) if prompt else None,
    )


def rewrite(path: Path, table: str, **columns: object) -> None:
    """Set columns of a written bundle's table to one value in all rows, and mend the checksum, as a forger would."""

    def change(data: pa.Table) -> pa.Table:
        for name, value in columns.items():
            place = data.schema.get_field_index(name)
            field = data.schema.field(place)
            data = data.set_column(place, field, pa.array([value] * len(data), field.type))
        return data

    replace_rows(path, table, change)


def replace_rows(path: Path, table: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change a written bundle's table, and mend the checksum."""
    file = path / f"{table}.parquet"
    data = change(pq.read_table(file))
    pq.write_table(data, file)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"][file.name]["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))


def rename(record: RunRecord, run_id: str) -> RunRecord:
    """The same run under another id: cheap copies for tests with many runs."""
    rows = {
        field.name: tuple(replace(row, run_id=run_id) for row in getattr(record, field.name))
        for field in fields(record)
        if field.name not in ("run", "prompt")
    }
    prompt = replace(record.prompt, run_id=run_id) if record.prompt else None
    return RunRecord(run=replace(record.run, run_id=run_id), prompt=prompt, **rows)


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
        loss_nats=0.006,
        loss_bound=0.013,
        loss_fit="mixed",
        loss_alarm=False,
        loss_ms=90.0,
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


def _with_losses(choices, loss):
    """The run's predicted loss, spread over its heads by the mass that each lost."""
    lost = sum(1 - c.mass for c in choices)
    return tuple(replace(c, loss_nats=loss * (1 - c.mass) / lost) for c in choices)


def _losses(run_id, tokens, dense):
    places = range(0, tokens - 16, max(16, tokens // 4))
    return tuple(
        LossRow(run_id, 0, place, 16, 0.004 + 1e-6 * place, 0.006 + 2e-7 * place if dense else None)
        for place in places
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
