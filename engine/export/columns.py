"""What every column of every table of a run bundle means: the source of DATA_DICTIONARY.md.

``TABLES`` says what a row is, ``COLUMNS`` has an entry for each column of ``engine/rows.py``. A test holds both
complete: a column without an entry, or one that may be NULL without saying what NULL means, fails it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """Meaning and unit of a column; ``null`` is what a missing value means, empty where none can be missing."""

    meaning: str
    unit: str = ""
    null: str = ""


TABLES: dict[str, str] = {
    "run": "The run: what was asked, on what, and the totals. One row.",
    "layer_run": "One row for each layer: predicted and measured time of its attention, and its certificate.",
    "head_choice": "One row for each unit (a head of a layer in a segment of a prompt): its choice, its certificates.",
    "candidate_score": "One row for each candidate of a unit: why it was chosen, or was not.",
    "fallback_event": "One row for each failed certificate, of a head or of its layer, and what followed.",
    "audit": "One row for each audited unit: exact mass, output error, error bounds.",
    "worst_row": "One row for each of the audited rows of a unit whose output is farthest off.",
    "block_reads": "One row for each audited unit: what its plan reads of each group of KV blocks.",
    "probe": "One row for each unit: the probe's attention by key block, as a picture.",
    "answer": "One row for each token that may come next, by dense attention and by this run.",
    "continuation": "How the prompt goes on, decoded greedily from the cache of either prefill. One row a prompt.",
    "prompt": "The prompt's text. One row; the file is missing where the text was not kept or was left out.",
}

_ROUTED = "nothing was routed"
_NOT_AUDITED = "not audited, or no sparse unit"
_NO_DENSE = "no dense prefill ran to compare with"
_NO_CALIBRATION = "no calibration was used"
_NOT_PRICED = "another policy than priced"
_DENSE_UNIT = "a dense unit, which needs none"
_OLDER = "written by a version that did not record it"

_UNIT = {
    "run_id": Column("The run."),
    "batch_index": Column("Which prompt of the batch, from 0."),
    "layer": Column("Layer, from 0."),
    "head": Column("Query head of the whole model, from 0."),
    "segment": Column("Segment of the prompt, from 0."),
}
_CANDIDATE = {
    "candidate": Column("Number of the candidate among those scored."),
    "pattern": Column("Pattern family, or dense."),
    "budget": Column("How much is read within the family, in words."),
    "mass": Column("Estimated retained mass: mean over the probe's routing rows.", "share"),
    "recent_mass": Column("Retained mass of the probe's recent rows.", "share"),
    "disagreement": Column(
        "u: standard deviation of the mean masses of recent, body and boundary rows.", "share"
    ),
    "risk": Column("R = 1 - g + alpha u + beta e (equation 4)."),
    "kernel_us": Column(
        "Kernel time that the latency profile predicts; layer_run.kernel_us is measured.", "µs"
    ),
    "reason": Column("The reason in one sentence, with the numbers that decided."),
}

COLUMNS: dict[str, dict[str, Column]] = {
    "run": {
        "run_id": _UNIT["run_id"],
        "created_at": Column("When the run was made.", "ISO 8601, UTC"),
        "model": Column("Name of the model."),
        "model_revision": Column("Hash of the weights' header and the model's configuration."),
        "tokenizer_hash": Column("Hash of the tokenizer."),
        "calibration": Column("Calibration used.", null="none: in-prompt certificates alone"),
        "profile": Column("Latency profile that predicted times."),
        "policy": Column("How candidates were chosen: priced, certified, budgeted or strict."),
        "tau": Column(
            "What each head's certificate must reach; under the policy priced a safety floor.", "share"
        ),
        "gate_threshold": Column(
            "lambda: the g that a candidate must reach.", "share", "each unit has its own"
        ),
        "confidence": Column("q: confidence of the certificates.", "share"),
        "budget": Column("T_l as given: a share of dense (0.25) or a time (800us).", null="no limit"),
        "probe_mode": Column("exact: all keys; pooled: means of key blocks."),
        "seed": Column("Seed of the probe's random rows."),
        "config_json": Column(
            "Every setting of the router; rope where positions were rescaled; ranks and rank_load where processes "
            "shared the heads; served where a server recorded it as one in so many of its routed requests.",
            "JSON",
        ),
        "prompt_name": Column("Label of the prompt, never a path."),
        "prompt_sha256": Column("Hash of the prompt's text."),
        "domain": Column("Label for grouping runs.", null="none given"),
        "batch": Column("Prompts in the batch.", "count"),
        "tokens": Column("Tokens of a prompt.", "tokens"),
        "layers": Column("Layers of the model.", "count"),
        "heads": Column("Query heads of a layer.", "count"),
        "kv_heads": Column("Key/value heads of a layer.", "count"),
        "head_dim": Column("Size of a head.", "numbers"),
        "segments": Column("Segments of the prompt.", "count"),
        "block_q": Column("Query rows of a block.", "tokens"),
        "block_k": Column("Keys of a KV block.", "tokens"),
        "device": Column("What it ran on."),
        "dtype": Column("Number format of the weights."),
        "versions_json": Column("Versions of Python and of the libraries.", "JSON"),
        "git_commit": Column("Commit of RouteSparse.", null="not a git checkout"),
        "routed": Column("False: the prompt is below break-even and dense attention ran untouched."),
        "probe_ms": Column("Measured time of the probe, all layers.", "ms"),
        "index_ms": Column("Measured time of building indices, all layers.", "ms"),
        "route_ms": Column("Measured time of choosing, all layers.", "ms"),
        "kernel_ms": Column("Measured time of sparse attention, all layers.", "ms"),
        "total_ms": Column("Measured time of the whole prefill, the first token's logits included.", "ms"),
        "dense_ms": Column("The same prefill with dense attention, measured.", "ms", _NO_DENSE),
        "density": Column("Kept share of the causal area: mean over units, tail included.", "share", _ROUTED),
        "units": Column("Routed units: heads x layers x segments x prompts.", "count"),
        "sparse_units": Column("Units that ran sparse.", "count"),
        "expanded_units": Column("Units that took a dearer candidate after a failed certificate.", "count"),
        "dense_fallback_units": Column("Units that became dense after failed certificates.", "count"),
        "dense_router_units": Column("Units that the router itself made dense.", "count"),
        "over_budget_layers": Column("Layers whose plan is predicted to exceed T_l.", "count"),
        "audit_depth": Column("none, rows (sampled rows) or full (all rows)."),
        "audit_rows": Column("Audited rows of a unit.", "rows"),
        "coverage": Column(
            "Share of sparse units whose exact mass is at least the certified.", "share", _NOT_AUDITED
        ),
        "mean_error": Column(
            "Output error ||O - O~|| / ||O||, mean over audited units.", "share", _NOT_AUDITED
        ),
        "max_error": Column("The largest output error of an audited row.", "share", _NOT_AUDITED),
        "top1_agreement": Column(
            "Share of prompts whose next token is dense attention's.", "share", _NO_DENSE
        ),
        "calibration_mismatch": Column(
            "What does not fit of a calibration used by force.", null="it fits, or none"
        ),
        "delta": Column("delta_q of the conformal claim.", "share", "no calibration, or no finite bound"),
        "drift_distance": Column(
            "Distance of the prompt from the calibration's prompts.", null=_NO_CALIBRATION
        ),
        "drift_p": Column("Conformal p-value of that distance.", "share", _NO_CALIBRATION),
        "drift_alarm": Column("True: the conformal claim is void.", null=_NO_CALIBRATION),
        "unmet_units": Column(
            "Failed certificates that T_l left no time for.", "count", "another policy than strict"
        ),
        "logit_error": Column(
            "||z - z_dense|| / ||z_dense|| of the next token's logits.", "share", _NO_DENSE
        ),
        "kl_nats": Column("KL(dense || run) of the next token.", "nats", _NO_DENSE),
        "price": Column("What a KV block must be worth to be read.", null=_NOT_PRICED),
        "tau_layer": Column("What each layer's certificate must reach.", "share", _NOT_PRICED),
        "owner": Column("Identity of a login, as a hash.", null="the person at this machine"),
        "tuned_price": Column("The quality target that set the price.", null="chosen by hand"),
        "sweep": Column("Id that the runs of one sweep share.", null="a run of its own"),
    },
    "layer_run": {
        "run_id": _UNIT["run_id"],
        "layer": _UNIT["layer"],
        "limit_us": Column("T_l in microseconds.", "µs", "no limit"),
        "planned_us": Column("Predicted time of probe and kernels.", "µs"),
        "dense_us": Column("Predicted time of dense attention.", "µs"),
        "probe_us": Column("Measured time of the probe.", "µs"),
        "index_us": Column("Measured time of building indices.", "µs"),
        "route_us": Column("Measured time of choosing.", "µs"),
        "kernel_us": Column("Measured time of sparse attention.", "µs"),
        "density": Column("Kept share of the causal area, tail included.", "share"),
        "over_budget": Column("Whether the plan is predicted to exceed T_l."),
        "forward_error": Column("Output error against a dense forward pass.", "share", "no full audit"),
        "lower_mass": Column(
            "Certificate of the layer: lower bound on the mean retained mass over its heads, the least of its segments "
            "and prompts.",
            "share",
            "another policy than priced, nothing sparse, or not certified",
        ),
        "raised": Column("Levels that the layer climbed for its certificate.", "levels", _NOT_PRICED),
    },
    "head_choice": {
        **_UNIT,
        "first_token": Column("First token of the segment.", "token"),
        "tokens": Column("Tokens of the segment.", "tokens"),
        "body_tokens": Column("Tokens without the dense tail.", "tokens"),
        **_CANDIDATE,
        "density": Column("Kept share of the causal area of the segment's body.", "share"),
        "gate_statistic": Column("g = min(mass, recent_mass).", "share"),
        "lower_mass": Column(
            "In-prompt certificate: lower bound on the body's mean mass.", "share", _DENSE_UNIT
        ),
        "conformal_lower_mass": Column(
            "Conformal claim g - delta_q.", "share", f"{_NO_CALIBRATION}, or one made without this family"
        ),
        "row_lower_mass": Column("Mass that a random row reaches with confidence q.", "share", _DENSE_UNIT),
        "entropy": Column("Mean entropy of the probe rows' attention over key blocks.", "nats"),
        "local_band": Column("Attention of the probe rows close to the diagonal.", "share"),
        "agreement": Column("1 - total variation between recent and body rows' attention.", "share"),
        "tests": Column("Certificates tested.", "count"),
        "fallback": Column("expand or dense, after a failed certificate.", null="no certificate failed"),
        "unmet": Column("True: T_l left no time for the escalation.", null="another policy than strict"),
        "gate_threshold": Column("lambda of this unit.", "share", _OLDER),
    },
    "candidate_score": {
        **_UNIT,
        **_CANDIDATE,
        "density": Column("Kept share of the causal area of the segment's body.", "share"),
        "predicted_error": Column(
            "e: output error that the calibration predicts.", "share", "no predictor was used"
        ),
        "admissible": Column("Whether g reaches lambda."),
        "chosen": Column("Whether the unit ran it."),
    },
    "fallback_event": {
        **_UNIT,
        "test": Column("Which test of the unit, from 1.", "count"),
        "from_candidate": Column("Candidate whose certificate failed."),
        "lower_mass": Column("That certificate, of the head or of the layer.", "share"),
        "tau": Column("What it had to reach.", "share"),
        "kind": Column("What followed: expand or dense."),
        "to_candidate": Column("Candidate that followed."),
        "paid_us": Column("Predicted kernel time that the step added.", "µs"),
        "scope": Column("Whose certificate failed: head or layer.", null="a head's"),
    },
    "audit": {
        **_UNIT,
        "rows": Column("Audited rows.", "rows"),
        "mass": Column("Exact retained mass, mean over the audited rows.", "share"),
        "min_mass": Column("Exact retained mass of the row that keeps least.", "share"),
        "lower_mass": Column("The certificate that is audited.", "share", _DENSE_UNIT),
        "covered": Column("Whether mass >= lower_mass.", null=_DENSE_UNIT),
        "mean_error": Column("Output error ||O - O~|| / ||O|| over the audited rows.", "share"),
        "max_error": Column("Output error of the worst row.", "share"),
        "bound_paper": Column("Largest bound 2 (1 - m) V_max of a row, relative to ||o||.", "share"),
        "bound_tight": Column("Largest bound (1 - m)(||o~|| + V_max) of a row, relative to ||o||.", "share"),
        "violations": Column("Rows whose error exceeds a bound; must be 0.", "rows"),
        "row_covered": Column("Share of rows with mass >= row_lower_mass.", "share", _DENSE_UNIT),
        "forward_error": Column("Output error against a dense forward pass.", "share", "no full audit"),
        "executed_error": Column(
            "Distance of the kernel's output from the plan's, rebuilt.",
            "share",
            "not compared, or an older version",
        ),
    },
    "worst_row": {
        **_UNIT,
        "rank": Column("Rank by error among the unit's audited rows, 0 the worst."),
        "position": Column("Token of the row.", "token"),
        "mass": Column("Exact retained mass of the row.", "share"),
        "error": Column("Output error of the row.", "share"),
        "lost_blocks": Column("KV blocks that it lost most mass on, most first.", "int32, little endian"),
        "lost_mass": Column("Share of the row's attention lost on each.", "float32, little endian"),
    },
    "block_reads": {
        **_UNIT,
        "cells": Column("Cells of the picture.", "count"),
        "pool": Column("KV blocks of a cell.", "blocks"),
        "reads": Column("255 times the share of later rows' pairs that are read.", "uint8 [cells]"),
        "mass": Column("Attention on the cell.", "float16 [cells], little endian"),
        "lost": Column("The part of it that the plan does not read.", "float16 [cells], little endian"),
    },
    "probe": {
        **_UNIT,
        "rows": Column("Rows of the probe.", "rows"),
        "columns": Column("Columns of the picture.", "count"),
        "pool": Column("KV blocks of a column.", "blocks"),
        "scale": Column("Multiply stored masses by this."),
        "positions": Column("Token of each row.", "int32 [rows], little endian"),
        "kinds": Column("0 recent, 1 routing, 2 certificate, 3 boundary.", "uint8 [rows]"),
        "mass": Column("Attention by row and column.", "float16 [rows, columns], little endian"),
        "masks": Column("What each budget reads, packed.", "uint8", _OLDER),
        "mask_columns": Column("Columns of the masks.", "count", _OLDER),
        "mask_pool": Column("KV blocks of a mask's column.", "blocks", _OLDER),
    },
    "answer": {
        "run_id": _UNIT["run_id"],
        "batch_index": _UNIT["batch_index"],
        "token_id": Column(
            "The token's number in the vocabulary; where its text was left out, its rank by dense attention."
        ),
        "text": Column(
            "The token's text; a byte that is no whole character stands as <0xF0>.",
            null="the prompt's text was not kept, or was left out",
        ),
        "dense": Column("Probability by dense attention.", "share"),
        "routed": Column("Probability by this run.", "share"),
        "dense_rank": Column("Rank by dense attention, 1 the most probable."),
        "routed_rank": Column("Rank by this run, 1 the most probable."),
    },
    "continuation": {
        "run_id": _UNIT["run_id"],
        "batch_index": _UNIT["batch_index"],
        "tokens": Column("Tokens of the longer side.", "count"),
        "same_tokens": Column("Leading tokens that are the same.", "count"),
        **{
            f"{side}_text": Column(f"{whose} text.", null="the prompt's text was not kept, or was left out")
            for side, whose in (("same", "Their"), ("dense", "Dense attention's"), ("routed", "This run's"))
        },
    },
    "prompt": {
        "run_id": _UNIT["run_id"],
        "text": Column("The prompt."),
        "block_starts": Column(
            "First character of each KV block, and the end.", "int32 [blocks + 1], little endian"
        ),
        "token_starts": Column(
            "First character of each token, and the end.", "int32 [tokens + 1], little endian", _OLDER
        ),
    },
}
