"""Prefill of a model, dense and routed, of real text: whole calls, in turn.

    python -m routesparse.engine.lab.studies.prefill --model MODEL --lengths 32768 --out prefill.json

Dense attention by cuDNN and by FlashAttention-2 on a GPU, by PyTorch's own on a CPU; routed at each of ``--prices``,
also where the product would not route. Every arm runs once before it counts (compiling, captured graphs), then all run
in turn ``--repeats`` times, beside ``--beside`` processes that each hold a core. A row holds the milliseconds of each
run, by price the kept share of the causal area and what of the last run was deciding and what attention, all layers
together, and the machine's load over the last minute.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from routesparse.engine import paths
from routesparse.engine.calibrate.origin import origin
from routesparse.engine.lab import study
from routesparse.engine.lab.generators.texts import read_folder
from routesparse.engine.models.load import LoadedModel, load_model
from routesparse.engine.models.rope import RopeScaling
from routesparse.engine.runtime.route import route

DENSE = {"cudnn": [SDPBackend.CUDNN_ATTENTION], "flash": [SDPBackend.FLASH_ATTENTION]}
ANY = {"sdpa": [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]}  # a CPU's


def main(argv: list[str] | None = None) -> None:
    """Measure every length and domain, and write after each."""
    parser = study.parser(__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[16_384, 32_768])
    parser.add_argument("--domains", nargs="+", default=["prose", "code"])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--prices", type=float, nargs="+", default=[0.25, 0.5, 1.0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--beside", type=int, default=0, help="busy processes beside this one")
    parser.add_argument("--rope", type=RopeScaling.parse, help="as analyze takes it")
    arguments = parser.parse_args(argv)
    loaded = load_model(arguments.model, rope=arguments.rope)
    rows: list[dict[str, Any]] = []
    for tokens in arguments.lengths:
        for domain in arguments.domains:
            ids = prompt_ids(loaded, arguments.data / domain / "test", arguments.batch, tokens)
            row = {"tokens": tokens, "batch": arguments.batch, "domain": domain, "beside": arguments.beside}
            with _busy(arguments.beside):
                row |= measured(loaded.model, ids, arguments.prices, arguments.repeats)
            rows.append(row | {"load": os.getloadavg()[0]})
            header = origin(loaded, study.command(), arguments.seed)
            paths.write_json(arguments.out, {**header, "rows": rows})


@torch.no_grad()
def measured(model: Any, ids: torch.Tensor, prices: list[float], repeats: int) -> dict[str, Any]:
    """Milliseconds by arm, and the area by price; ids int64 [B, n]."""
    call = functools.partial(model, ids, logits_to_keep=1, use_cache=True)
    times: dict[str, list[float]] = defaultdict(list)
    areas: dict[str, float] = {}
    parts: dict[str, dict[str, float]] = {}
    for turn in range(1 + repeats):
        for name, backends in (DENSE if ids.is_cuda else ANY).items():
            with sdpa_kernel(backends):
                times[name].append(_ms(call))
        for price in prices:
            with route(model, price=price, break_even_tokens=0, salt=str(turn)) as trace:
                times[f"price {price:g}"].append(_ms(call))
            areas[f"price {price:g}"] = sum(one.density for one in trace.decisions) / len(trace.decisions)
            passes = trace.prompts[-1].passes
            deciding_us = sum(one.deciding_us for one in passes)
            attention_us = sum(one.kernel_us for one in passes)
            parts[f"price {price:g}"] = {"deciding_ms": deciding_us / 1e3, "attention_ms": attention_us / 1e3}
    return {
        "first_ms": {name: of[0] for name, of in times.items()},
        "ms": {name: of[1:] for name, of in times.items()},
        "area": areas,
        "parts": parts,
    }


@contextmanager
def _busy(processes: int) -> Iterator[None]:
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def _ms(call: Any) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    begun = time.perf_counter()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begun)


def prompt_ids(loaded: LoadedModel, folder: Path, batch: int, tokens: int) -> torch.Tensor:
    """int64 [batch, tokens]: the folder's text from its start, again and again where it is short."""
    text = "\n\n".join(one.text for one in read_folder(folder))
    found = loaded.tokenizer(text[: 16 * batch * tokens], return_tensors="pt", verbose=False).input_ids
    found = found.repeat(1, -(-batch * tokens // found.shape[1]))[:, : batch * tokens]
    return found.reshape(batch, tokens).to(loaded.device)


if __name__ == "__main__":
    study.run(main)
