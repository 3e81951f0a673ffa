"""Every feature of the Triton backend against the float64 oracle, on a GPU.

python -m routesparse.engine.lab.bench.correctness [--small] [--out FILE]

Each case runs on memory filled with NaN, through every way of loading tiles that it allows; checked are the relative
error of the output and of the log-sum-exp, exact zeros and -inf of empty rows, equal bits over ten runs, and that a
changed future token changes no earlier bit. ``--small`` keeps to what compute-sanitizer finishes in a minute:

compute-sanitizer --tool memcheck python -m routesparse.engine.lab.bench.correctness --small
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from routesparse.engine.lab.bench.timing import header
from routesparse.engine.provenance import kernels_sha256
from routesparse.kernels import reference
from routesparse.kernels.attention import attend_in_triton, possible_loads
from routesparse.kernels.interface import RowPlan
from routesparse.kernels.logits import Logits
from routesparse.kernels.row_attention import Places, row_attention

# Relative errors of the output: rounding of the operands and of the weights to the dtype.
TOLERANCE = {torch.bfloat16: 6e-3, torch.float16: 8e-4, torch.float32: 2e-6}
LSE_TOLERANCE = 1e-5
RUNS = 10


@dataclass(frozen=True)
class Case:
    """One random problem; empty is the share of rows without any key."""

    name: str
    n_q: int = 1500
    n_k: int = 1500
    batch: int = 1
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 128
    dtype: torch.dtype = torch.bfloat16
    block_q: int = 128
    block_k: int = 64
    density: float = 0.3
    columns: int = 0
    dense: float = 0.0
    empty: float = 0.0
    key_start: tuple[int, ...] | None = None
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    layout: Literal["contiguous", "interleaved", "unaligned"] = "contiguous"

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """q, k, v; interleaved as a projection leaves them, unaligned so that TMA cannot read them."""
        generator = torch.Generator("cuda").manual_seed(self.n_q + 7 * self.n_k)

        def normal(heads: int, length: int) -> torch.Tensor:
            pad = 1 if self.layout == "unaligned" else 0
            size = (self.batch, length, heads, self.head_size + pad)
            x = torch.randn(size, generator=generator, device="cuda").to(self.dtype)
            x = x[..., : self.head_size].transpose(1, 2)
            return x.contiguous() if self.layout == "contiguous" else x

        q, k, v = (
            normal(self.heads, self.n_q),
            normal(self.kv_heads, self.n_k),
            normal(self.kv_heads, self.n_k),
        )
        return q, k, v

    def plan(self) -> RowPlan:
        """A random valid plan."""
        generator = torch.Generator("cuda").manual_seed(self.n_q + self.n_k)

        def drawn(*size: int) -> torch.Tensor:
            return torch.rand(size, generator=generator, device="cuda")

        rows = (self.batch, self.heads, -(-self.n_q // self.block_q))
        columns = (drawn(*rows[:2], self.columns) * self.n_k).int() if self.columns else None
        start = None if self.key_start is None else torch.tensor(self.key_start, dtype=torch.int32).cuda()
        plan = RowPlan.from_block_mask(
            drawn(*rows, -(-self.n_k // self.block_k)) < self.density,
            self.n_q,
            self.n_k,
            self.block_q,
            self.block_k,
            columns=columns,
            dense_rows=drawn(*rows) < self.dense,
            key_start=start,
            window=self.window,
            softcap=self.softcap,
            sinks=torch.linspace(-1.0, 2.0, self.heads, device="cuda") if self.sinks else None,
        ).validate()
        empty = drawn(*rows) < self.empty
        return dataclasses.replace(
            plan,
            block_count=plan.block_count.masked_fill(empty, 0),
            column_count=plan.column_count.masked_fill(empty, 0),
            dense_rows=plan.dense_rows & ~empty,
        )


def cases() -> list[Case]:
    """Head sizes, dtypes, groups, ragged lengths, chunks, padding and every option, alone and together."""
    made = [Case(f"head {size}", head_size=size, columns=300, dense=0.1) for size in (64, 80, 96, 128, 256)]
    made += [
        Case(f"{dtype} head {size}", dtype=dtype, head_size=size, columns=200, dense=0.2, empty=0.1)
        for dtype in (torch.float16, torch.float32)
        for size in (64, 128)
    ]
    made += [
        Case("one launch of every group", heads=12, kv_heads=heads, columns=100)
        for heads in (1, 2, 3, 4, 6, 12)
    ]
    made += [Case("ragged", n_q=n, n_k=n, columns=60) for n in (1, 63, 64, 65, 127, 129, 191, 193, 1023)]
    made += [
        Case("chunk", n_q=n_q, n_k=n_k, columns=130)
        for n_q, n_k in ((1, 777), (128, 1024), (100, 1061), (640, 1300))
    ]
    made += [
        Case("batch", batch=3, columns=257, dense=0.2),
        Case("full lists", density=1.0),
        Case("only the diagonal", density=0.0),
        Case("columns only", density=0.0, columns=900),
        Case("empty rows", empty=0.5, dense=0.2, columns=50),
        Case("sinks", sinks=True, empty=0.2, columns=50),
        Case("padding", batch=3, key_start=(0, 700, 1490), columns=50, dense=0.2),
        Case("padded chunk", n_q=500, batch=2, key_start=(1000, 1333), columns=50, dense=0.2),
        Case("window", window=300, columns=100, dense=0.4),
        Case("window of one", window=1, columns=20),
        Case("softcap", softcap=5.0, columns=100, dense=0.2),
        Case("interleaved", layout="interleaved", columns=200),
        Case("interleaved head 64", layout="interleaved", head_size=64, columns=200),
        Case("unaligned", layout="unaligned", columns=200),
        Case("other tiles", block_q=64, block_k=32, columns=100),
        Case("wide tiles", block_q=64, block_k=128, columns=100),
    ]
    everything = {"window": 600, "softcap": 8.0, "sinks": True, "key_start": (0, 333), "batch": 2}
    made += [
        Case("everything", n_q=700, head_size=size, columns=150, dense=0.2, empty=0.1, **everything)  # type: ignore[arg-type]
        for size in (64, 80, 128, 256)
    ]
    return made


def small_cases() -> list[Case]:
    """A few that touch every kernel."""
    size = {"n_q": 400, "n_k": 461, "heads": 2, "kv_heads": 1}
    return [
        Case("small", **size, columns=150, dense=0.2),  # type: ignore[arg-type]
        Case("small head 64", **size, head_size=64, columns=150),  # type: ignore[arg-type]
        Case("small head 80", **size, head_size=80, columns=150, key_start=(99,), sinks=True),  # type: ignore[arg-type]
        Case("small window", **size, window=200, softcap=4.0, columns=50),  # type: ignore[arg-type]
    ]


def check(case: Case) -> Iterator[dict[str, Any]]:
    """One row of findings for each way of loading."""
    q, k, v = case.tensors()
    plan = case.plan()
    scale = case.head_size**-0.5
    expected_out, expected_lse = reference.plan_attention(q, k, v, plan)
    changed = case.n_k - case.n_q // 2
    unchanged = changed - (case.n_k - case.n_q)
    later_k, later_v = k.clone(), v.clone()
    later_k[:, :, changed:] = 30.0
    later_v[:, :, changed:] = -1e4
    for loads in possible_loads(q, k, v, plan, False):
        out, lse = attend_in_triton(q, k, v, plan, scale, loads)
        again = [attend_in_triton(q, k, v, plan, scale, loads) for _ in range(RUNS - 1)]
        later_out, later_lse = attend_in_triton(q, later_k, later_v, plan, scale, loads)
        empty = expected_lse == -torch.inf
        found: dict[str, Any] = {
            "case": case.name,
            "loads": loads,
            "shape": f"B{case.batch} H{case.heads}/{case.kv_heads} q{case.n_q} k{case.n_k} d{case.head_size}",
            "dtype": str(case.dtype).removeprefix("torch."),
            "out_error": _relative_error(out, expected_out),
            "lse_error": _relative_error(lse, expected_lse),
            "stable": all(torch.equal(out, o) and torch.equal(lse, other) for o, other in again),
            "causal": torch.equal(out[:, :, :unchanged], later_out[:, :, :unchanged])
            and torch.equal(lse[:, :, :unchanged], later_lse[:, :, :unchanged]),
            "empty_rows_exact": bool((out[empty] == 0).all()) and torch.equal(lse == -torch.inf, empty),
        }
        found["passed"] = (
            found["out_error"] <= TOLERANCE[case.dtype]
            and found["lse_error"] <= LSE_TOLERANCE
            and all(found[name] for name in ("stable", "causal", "empty_rows_exact"))
        )
        yield found


def check_rows_at_positions(keys: int) -> Iterator[dict[str, Any]]:
    """Attention of rows at positions (kernels/row_attention), which neither lists nor log-sum-exps belong to."""
    every: dict[str, Any] = {"window": keys // 3, "softcap": 5.0, "sinks": True}
    rows = torch.arange(keys - 1, -1, -max(1, keys // 200), device="cuda").flip(0)
    key = torch.arange(keys, device="cuda")
    for dtype in TOLERANCE:
        for head_size in (64, 80, 128):
            for options in ({}, every) if head_size == 128 else ({},):
                case = Case("", len(rows), keys, heads=12, head_size=head_size, dtype=dtype, **options)
                q, k, v = case.tensors()
                sinks = torch.linspace(-1.0, 2.0, case.heads, device="cuda") if case.sinks else None
                logits = Logits(q, k, head_size**-0.5, case.softcap, sinks)
                seen = (key <= rows[:, None]) & (key > rows[:, None] - (case.window or keys))
                expected, _ = reference.masked_attention(q, k, v, seen, None, case.softcap, sinks)
                out, *again = (
                    row_attention(logits, v, Places(rows), window=case.window) for _ in range(RUNS)
                )
                found: dict[str, Any] = {
                    "case": f"rows at positions{', everything' if options else ''}",
                    "loads": "pointers",
                    "shape": f"B1 H12/{case.kv_heads} q{len(rows)} k{keys} d{head_size}",
                    "dtype": str(dtype).removeprefix("torch."),
                    "out_error": _relative_error(out, expected),
                    "lse_error": 0.0,
                    "stable": all(torch.equal(out, other) for other in again),
                }
                found["passed"] = found["out_error"] <= TOLERANCE[dtype] and found["stable"]
                yield found


def check_far_addresses() -> Iterator[dict[str, Any]]:
    """Element offsets past 2^31: the last rows of the last head of tensors that are larger than that."""
    n_tokens, heads, head_size = 1_050_000, 17, 128
    generator = torch.Generator("cuda").manual_seed(0)
    size = (1, heads, n_tokens, head_size)
    assert heads * n_tokens * head_size > 2**31
    q, k, v = (torch.randn(size, generator=generator, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    rows = -(-n_tokens // 128)
    mask = torch.zeros(1, 1, rows, -(-n_tokens // 64), dtype=torch.bool, device="cuda")
    mask[..., ::997] = True
    columns = torch.arange(5, n_tokens, 9001, device="cuda").view(1, 1, -1)
    one = RowPlan.from_block_mask(mask, n_tokens, n_tokens, columns=columns, block_capacity=64)
    every = torch.zeros(heads, dtype=torch.long)
    plan = one.select_heads(every.tolist())
    tail = 200
    positions = torch.arange(n_tokens - tail, n_tokens, device="cuda")
    key = torch.arange(n_tokens, device="cuda")
    first_row = (n_tokens - tail) // 128
    listed = torch.zeros(rows - first_row, n_tokens, dtype=torch.bool, device="cuda")
    for at, row in enumerate(range(first_row, rows)):
        count = int(one.block_count[0, 0, row])
        blocks = one.blocks[0, 0, row, :count].long()
        keys = (blocks[:, None] * 64 + torch.arange(64, device="cuda")).flatten()
        listed[at, keys[keys < n_tokens]] = True
        listed[at, one.columns[0, 0, row, : int(one.column_count[0, 0, row])].long()] = True
    seen = listed[positions // 128 - first_row] & (key <= positions[:, None])
    expected, expected_lse = reference.masked_attention(
        q[:, -1:, -tail:], k[:, -1:], v[:, -1:], seen[None, None]
    )
    for loads in possible_loads(q, k, v, plan, False):
        out, lse = attend_in_triton(q, k, v, plan, head_size**-0.5, loads)
        out_error = _relative_error(out[:, -1:, -tail:], expected)
        lse_error = _relative_error(lse[:, -1:, -tail:], expected_lse)
        passed = out_error <= TOLERANCE[torch.bfloat16] and lse_error <= LSE_TOLERANCE
        yield {
            "case": "element offsets past 2^31",
            "loads": loads,
            "shape": f"B1 H{heads}/{heads} q{n_tokens} k{n_tokens} d{head_size}",
            "dtype": "bfloat16",
            "out_error": out_error,
            "lse_error": lse_error,
            "passed": passed,
        }


def _relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """||actual - expected|| / ||expected|| where expected is finite; infinite where actual is NaN."""
    finite = torch.isfinite(expected)
    difference = (actual.double() - expected.double())[finite]
    if bool(difference.isnan().any()):
        return float("inf")
    return float(difference.norm() / expected[finite].double().norm().clamp(min=1e-30))


def _findings(chosen: list[Case], far_addresses: bool) -> Iterator[dict[str, Any]]:
    for case in chosen:
        yield from check(case)
    yield from check_rows_at_positions(chosen[0].n_k)
    if far_addresses:
        yield from check_far_addresses()


def main(argv: list[str] | None = None) -> None:
    """Print a line per finding; exit code 1 when one did not pass."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a few small cases, for compute-sanitizer")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    arguments = parser.parse_args(argv)
    # New memory comes filled with NaN, so an output left unwritten shows.
    torch.use_deterministic_algorithms(True)
    chosen = small_cases() if arguments.small else cases()
    findings = []
    for found in _findings(chosen, far_addresses=not arguments.small):
        findings.append(found)
        verdict = "ok    " if found["passed"] else "FAILED"
        print(
            f"{verdict} {found['case']:<28} {found['loads']:<10} {found['dtype']:<8} {found['shape']:<36} "
            f"out {found['out_error']:.1e} lse {found['lse_error']:.1e}",
            flush=True,
        )
    failed = sum(not found["passed"] for found in findings)
    print(f"{len(findings) - failed} of {len(findings)} passed")
    if arguments.out is not None:
        command = "python -m routesparse.engine.lab.bench.correctness"
        told = {**header(0), "command": command, "kernels_sha256": kernels_sha256()}
        arguments.out.write_text(json.dumps({**told, "findings": findings}, indent=1) + "\n")
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
