"""Related work and how it stands to RouteSparse: one word each, and what the file here leaves out.

python -m routesparse.engine.lab.rivals.related      # the table of engine/lab/rivals/README.md

runs with        works beside a routed prefill, and a test shows it
pattern inside   its pattern is one that RouteSparse itself routes to
baseline         a selection rule to compare with, on our kernel; RouteSparse does not use it
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

Label = Literal["runs with", "pattern inside", "baseline"]
LABELS: tuple[str, ...] = get_args(Label)


class Related(NamedTuple):
    """One line of the table. method: its name in the selection study; file: below engine/lab/rivals."""

    work: str
    arxiv: str
    label: Label
    method: str
    file: str
    differs: str


RELATED: tuple[Related, ...] = (
    Related(
        "StreamingLLM",
        "2309.17453",
        "pattern inside",
        "static_a_shape",
        "static_a_shape.py",
        "the family `a_shape`; here the pattern alone, the same for every head",
    ),
    Related(
        "MInference",
        "2407.02490",
        "pattern inside",
        "minference",
        "minference.py",
        "the family `vertical_slash`; here with the authors' offline search; slashes become tiles",
    ),
    Related(
        "Longformer",
        "2004.05150",
        "pattern inside",
        "longformer",
        "patterns/longformer.py",
        "the family `a_shape` where nothing is dilated and the first tokens are global; causal",
    ),
    Related(
        "Sparse Transformer, strided",
        "1904.10509",
        "baseline",
        "sparse_transformer_strided",
        "patterns/sparse_transformer.py",
        "both sets in every head; slashes become tiles, so the stride is longer",
    ),
    Related(
        "Sparse Transformer, fixed",
        "1904.10509",
        "baseline",
        "sparse_transformer_fixed",
        "patterns/sparse_transformer.py",
        "both sets in every head",
    ),
    Related(
        "BigBird",
        "2007.14062",
        "baseline",
        "bigbird",
        "patterns/bigbird.py",
        "causal; query blocks of 128 rows",
    ),
    Related(
        "Reformer",
        "2001.04451",
        "baseline",
        "reformer",
        "patterns/reformer.py",
        "shared queries and keys absent; means of blocks are hashed, not tokens",
    ),
    Related(
        "QUEST",
        "2406.10774",
        "baseline",
        "quest",
        "scorers/quest.py",
        "128 rows choose together, where theirs is one decoded query",
    ),
    Related(
        "SparQ",
        "2312.04985",
        "baseline",
        "sparq",
        "scorers/sparq.py",
        "blocks instead of single keys; no mean value for what is not read",
    ),
    Related(
        "Dynamic sparse attention",
        "2110.11299",
        "baseline",
        "dynamic_sparse",
        "scorers/dynamic_sparse.py",
        "the probe is a random projection; what theirs learns is absent",
    ),
    Related(
        "DHSA",
        "2510.24606",
        "baseline",
        "dhsa",
        "scorers/dhsa.py",
        "equal chunks; the trained predictor of boundaries is absent",
    ),
    Related(
        "InfLLM",
        "2402.04617",
        "baseline",
        "infllm",
        "scorers/infllm.py",
        "positions of the prompt; the local window is a setting",
    ),
    Related(
        "DeepSeek-V3.2's indexer",
        "2512.02556",
        "baseline",
        "indexer",
        "scorers/indexer.py",
        "trained on the bundled model by distillation; reads rotated queries and keys; the model stays as it was",
    ),
    Related(
        "FlexPrefill", "2502.20766", "baseline", "flexprefill", "flexprefill.py", "one KV block is 64 keys"
    ),
    Related(
        "XAttention", "2503.16428", "baseline", "xattention", "xattention.py", "one threshold for all heads"
    ),
    Related(
        "FlashPrefill",
        "2603.06199",
        "baseline",
        "flashprefill",
        "flashprefill.py",
        "scores compared as logarithms",
    ),
    Related("Stem", "2603.06274", "baseline", "stem", "stem.py", "read from a summary and the authors' code"),
    Related("Prism", "2602.08426", "baseline", "prism", "prism.py", "a short last block is not padded"),
    Related(
        "TriangleMix",
        "2507.21526",
        "baseline",
        "trianglemix",
        "trianglemix.py",
        "triangle layers are the model's later half, not found by gradients",
    ),
)


def table() -> list[str]:
    """The Markdown table, line by line."""
    head = [
        "| work | arXiv | stands as | method of the study | file | where it differs |",
        "|---|---|---|---|---|---|",
    ]
    return head + [
        f"| {r.work} | {r.arxiv} | *{r.label}* | `{r.method}` | [{r.file}]({r.file}) | {r.differs} |"
        for r in RELATED
    ]


if __name__ == "__main__":
    print("\n".join(table()))
