"""What certifying a layer costs on a GPU: the time of its sampled rows beside dense attention of the same layer.

    python -m routesparse.engine.lab.studies.certify_cost --out certify_cost.json

Random Q, K and V of an 8B model's layer in bfloat16. For each length and number of rows a head: the device time of
scoring the rows without a plan, with NAMED rows of the prompt's end named beside them, and with a row plan of a fifth
of the blocks; drawing them on the host counts. The report's bounds are computed after the pass and are not counted.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from routesparse.engine.certification.certify import Request
from routesparse.engine.certification.named_rows import read_names
from routesparse.engine.lab import study
from routesparse.engine.lab.bench.timing import header, sustained
from routesparse.engine.method.attend import dense_attention
from routesparse.engine.method.inputs import AttentionInputs
from routesparse.kernels.interface import RowPlan

HEADS, KV_HEADS, SIZE = 32, 8, 128
DENSITY = 0.2
NAMED = "last:64"


def main(argv: list[str] | None = None) -> None:
    """Time every length and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[32_768, 131_072])
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 16, 32, 64])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args(argv)
    if not torch.cuda.is_available():
        sys.exit("the study needs a GPU; this machine has none that torch can use")
    rows = [row for tokens in arguments.lengths for row in layer(tokens, arguments.rows, arguments.seed)]
    command = study.command()
    study.save(
        arguments.out,
        {
            **header(arguments.seed),
            "command": command,
            "kv_heads": KV_HEADS,
            "size": SIZE,
            "density": DENSITY,
            "named": NAMED,
            "rows": rows,
        },
    )


def layer(tokens: int, counts: list[int], seed: int, device: str = "cuda") -> list[dict[str, Any]]:
    """One length: a row for each number of rows a head."""
    generator = torch.Generator(device).manual_seed(seed)

    def draw(heads: int) -> torch.Tensor:
        return torch.randn(1, heads, tokens, SIZE, generator=generator, device=device, dtype=torch.bfloat16)

    inputs = AttentionInputs(draw(HEADS), draw(KV_HEADS), draw(KV_HEADS), SIZE**-0.5)
    out = dense_attention(inputs, None)
    shape = (1, HEADS, -(-tokens // 128), -(-tokens // 64))
    blocks = torch.rand(shape, generator=generator, device=device) < DENSITY
    plan = RowPlan.from_block_mask(blocks, tokens, tokens)
    dense_ms = sustained(dense_attention, inputs, None).median_ms
    found = []
    for count in counts:
        plain = sustained(Request(rows=count).scored, inputs, out, "cost", 0, None)
        named = sustained(Request(rows=count, rows_at=read_names(NAMED)).scored, inputs, out, "cost", 0, None)
        planned = sustained(Request(rows=count, plan=plan).scored, inputs, out, "cost", 0, None)
        study.note(
            f"{tokens:,} tokens, {count} rows a head: {plain.median_ms:.2f} ms, with {NAMED} {named.median_ms:.2f} ms, "
            f"with a plan {planned.median_ms:.2f} ms, dense {dense_ms:.2f} ms"
        )
        found.append(
            {
                "tokens": tokens,
                "rows": count,
                "heads": HEADS,
                "dense_ms": dense_ms,
                "certify_ms": plain.median_ms,
                "certify_p20_ms": plain.p20_ms,
                "certify_p80_ms": plain.p80_ms,
                "with_named_ms": named.median_ms,
                "with_plan_ms": planned.median_ms,
            }
        )
    return found


if __name__ == "__main__":
    study.run(main)
