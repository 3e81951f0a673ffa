"""What every column of a certificate's tables means, as ``columns.py`` says it of a run's."""

from __future__ import annotations

from routesparse.engine.export.columns import COLUMNS as OF_RUNS
from routesparse.engine.export.columns import Column

TABLES: dict[str, str] = {
    "certificate": "The certificate: what was certified, on what, and the verdict. One row.",
    "claim": "What random rows say of all rows: one row for the whole pass, for each layer, and for each head.",
    "named_row": "Tokens that the caller named, scored in every head: a measurement of them, no bound for other rows.",
}

_POOLED = "pooled over all"
_NO_PLAN = "no plan was given"
_NO_TOLERANCE = "no tolerance was asked for"
_SAME = (
    *(
        "created_at",
        "model",
        "model_revision",
        "tokenizer_hash",
        "prompt_name",
        "prompt_sha256",
        "batch",
        "tokens",
    ),
    *("layers", "heads", "kv_heads", "head_dim", "device", "dtype", "versions_json", "git_commit", "owner"),
)

COLUMNS: dict[str, dict[str, Column]] = {
    "certificate": {
        "run_id": Column("The certificate."),
        **{name: OF_RUNS["run"][name] for name in _SAME},
        "function": Column("The attention function, as transformers calls it."),
        "plan": Column("The plan's name: a rule, or the name of a mask's file.", null=_NO_PLAN),
        "seed": Column("Places the rows, with the prompt's hash."),
        "config_json": Column("What certify was asked for; of our router also its settings.", "JSON"),
        "sampled_rows": Column("Random rows of each head that were scored exactly.", "count"),
        "confidence": Column("Confidence of each claim, for itself alone.", "share"),
        "mass_level": Column("Rows whose retained mass is below it are counted.", "share"),
        "tolerance": Column("Relative output error that a row may have.", null="rounding only"),
        "most_beyond": Column("Share of rows that may exceed the tolerance.", "share"),
        "dense_layers": Column(
            "Layers for which the plan says nothing: they count as reading everything.", "count"
        ),
        "verdict": Column("broken (NaN or Inf), differs, within (the tolerance), or exact (up to rounding)."),
        "sentence": Column("The verdict in a sentence."),
        "findings_json": Column("What stands beside the verdict, a list of sentences.", "JSON"),
    },
    "claim": {
        "run_id": Column("The certificate."),
        "scope": Column("What the rows are of: the whole pass, a layer (its heads pooled), or a head."),
        "batch_index": Column("Which prompt of the batch, from 0.", null=_POOLED),
        "layer": Column("Layer, from 0.", null=_POOLED),
        "head": Column("Query head of the whole model, from 0.", null=_POOLED),
        "worst_position": Column("Token, of those drawn, whose output is farthest off.", null=_POOLED),
        "rows": Column("Rows that were drawn and scored.", "count"),
        "mean_error": Column("Mean of min(relative output error, 1), as seen."),
        "mean_error_bound": Column("At most this over all rows, at the confidence."),
        "largest_error": Column("Largest relative output error seen; infinite where the output is."),
        "share_within": Column(
            "At least this share of all rows has at most the largest error seen.", "share"
        ),
        "nonfinite_rows": Column("Rows seen with NaN or Inf.", "count"),
        "beyond_rounding": Column(
            "Rows seen that differ by more than the number format's rounding.", "count"
        ),
        "beyond_rounding_bound": Column("At most this share of all rows does.", "share"),
        "beyond_tolerance": Column("Rows seen beyond the tolerance.", "count", _NO_TOLERANCE),
        "beyond_tolerance_bound": Column("At most this share of all rows is.", "share", _NO_TOLERANCE),
        "mass": Column("Mean retained mass of the plan, as seen.", "share", _NO_PLAN),
        "mass_bound": Column("At least this over all rows.", "share", _NO_PLAN),
        "low_rows": Column("Rows seen with a retained mass below mass_level.", "count", _NO_PLAN),
        "low_rows_bound": Column("At most this share of all rows has.", "share", _NO_PLAN),
        "hit_rate": Column("Share of rows seen whose most attended key the plan reads.", "share", _NO_PLAN),
        "hit_rate_bound": Column("At least this share of all rows.", "share", _NO_PLAN),
        "plan_error": Column("Mean relative output error of the plan itself, in float32.", null=_NO_PLAN),
        "disagreement": Column(
            "Largest distance between the function's output and the plan's, relative to the values read.",
            null=_NO_PLAN,
        ),
    },
    "named_row": {
        "run_id": Column("The certificate."),
        "label": Column("How the rows were named: start:stop in tokens, or last:n."),
        "batch_index": Column("Which prompt of the batch, from 0."),
        "position": Column("The token, from 0."),
        "text": Column("What the token reads.", null="the prompt's text was not kept"),
        "rows": Column("Rows scored: this token in every head of every layer.", "count"),
        "mean_error": Column("Mean of min(relative output error, 1) over these rows."),
        "largest_error": Column("Their largest relative output error; infinite where the output is."),
        "worst_layer": Column("Layer of the largest error."),
        "worst_head": Column("Head of the largest error."),
        "nonfinite_rows": Column("Of these rows, those with NaN or Inf.", "count"),
        "beyond_rounding": Column(
            "Of these rows, those that differ by more than the number format's rounding.", "count"
        ),
        "beyond_tolerance": Column("Of these rows, those beyond the tolerance.", "count", _NO_TOLERANCE),
        "mass": Column("Their mean retained mass.", "share", _NO_PLAN),
        "hit_rate": Column("Share of them whose most attended key the plan reads.", "share", _NO_PLAN),
    },
}
