"""The shape of the files of scores: what a reader checks before it believes a number (``evaluations.py``)."""

from __future__ import annotations

from routesparse.engine import fields

_NUMBER = fields.number()
_ESTIMATE = fields.record({"value": _NUMBER, "low": _NUMBER, "high": _NUMBER}, more=fields.plain)
MEDIANS = ("select_ms", "prefill_ms", "attention_ms", "fallback")
_TASK = fields.record(
    {
        "task": fields.text,
        "n": fields.whole(1),
        "few_clusters": fields.flag,
        "score": _NUMBER,
        "dense": _NUMBER,
        "difference": _ESTIMATE,
        "harmed": fields.whole(),
    },
    more=fields.plain,
)
_ROW = fields.record(
    {
        "length": fields.whole(1),
        "method": fields.text,
        "setting": _NUMBER,
        "extras": fields.flag,
        "n": fields.whole(),
    },
    {
        "clusters": fields.whole(1),
        "few_clusters": fields.flag,
        "score": _NUMBER,
        "difference": _ESTIMATE,
        "word_perplexity_ratio": _ESTIMATE,
        "worst_decile": _ESTIMATE,
        "harmed": fields.whole(),
        "gained": fields.whole(),
        "few_discordant": fields.flag,
        "newcombe": fields.optional(fields.items(_NUMBER, 2)),
        "area": fields.number(0, 1.001),
        "predicted_by": fields.items(fields.text),
        "timed_by": fields.items(fields.text),
        "measures": fields.record({"word_perplexity": _NUMBER}, more=fields.plain),
        "medians": fields.record({}, {name: fields.optional(fields.number(0)) for name in MEDIANS}),
        "by_task": fields.items(_TASK),
        "tasks_where_dense_reaches_80": fields.items(fields.text),
    },
    more=fields.plain,
)
_VERDICT = fields.record(
    {
        "test": fields.text,
        "verdict": fields.one_of("supported", "rejected", "not resolved", "not tested"),
    },
    {
        "p_holm": fields.number(0, 1),
        "estimates": fields.items(_ESTIMATE, least=1),
        "n": fields.whole(1),
        "clusters": fields.whole(1),
        "few_clusters": fields.flag,
        "settings": fields.items(fields.items(fields.text)),
        "suites": fields.items(fields.text),
        "strata": fields.whole(1),
        "dropped_strata": fields.whole(),
        "time_ratios": fields.items(fields.items(fields.number(0))),
        "unequal": fields.one_of("faster", "ours faster"),
        "why": fields.text,
    },
)
_ABOUT = fields.record(
    {
        "suite": fields.text,
        "n": fields.whole(1),
        "seed": fields.whole(),
        "model": fields.text,
        "created_at": fields.text,
    },
    {
        "command": fields.text,
        "processes": fields.whole(1),
        "timed_alone": fields.flag,
        "cells": fields.whole(),
        "timed_cells": fields.whole(),
        "devices": fields.items(fields.text),
        "predicted_by_commits": fields.items(fields.text),
    },
    more=fields.plain,
)
SCORES = fields.record(
    {"about": _ABOUT, "suite": fields.items(_ROW)},
    {"hypotheses": fields.items(_VERDICT)},
    more=fields.plain,
)
FILE = fields.record(
    {"command": fields.text, "evaluations": fields.items(SCORES)}, {"together": fields.items(_VERDICT)}
)
