"""Prefill of a model in one process and in several: parity, time to first token, balance. Started by torchrun.

    torchrun --nproc-per-node 1 -m routesparse.engine.lab.studies.parallel --model MODEL --reference 1.pt --out 1.json
    torchrun --nproc-per-node 2 -m routesparse.engine.lab.studies.parallel --model MODEL --reference 1.pt --out 2.json

One process writes ``--reference``: its last token's logits, choices and times. Several, by transformers' tensor
parallelism or DeepSpeed's Ulysses (``--ways``), compare themselves with it where there is one. Unrouted (cuDNN's
attention on a GPU) and routed run in turn, after one of each that does not count; milliseconds are the slowest
process's. Where unrouted takes more than LONG_MS it runs once, routed twice, and full budget is left out. No call keeps
a cache. ``--random`` takes fields of a Llama configuration over Llama-3.1-8B's instead of a model: random weights and
tokens have honest times at the area that stands beside them, and no meaning.
"""

from __future__ import annotations

import functools
import importlib
import json
import math
import os
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from torch import distributed
from torch.nn.attention import sdpa_kernel
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.distributed import DistributedConfig

from routesparse.engine import paths
from routesparse.engine.calibrate.origin import origin
from routesparse.engine.lab import study
from routesparse.engine.lab.studies.prefill import ANY, DENSE, prompt_ids
from routesparse.engine.models.load import LoadedModel, load_in_turn
from routesparse.engine.models.rope import RopeScaling
from routesparse.engine.runtime.route import route
from routesparse.engine.runtime.tensor_parallel import record_of_all_ranks

LONG_MS = 10_000.0
FULL = 1e-6  # a price at which every block is read
LLAMA_8B = {
    **{"intermediate_size": 14_336, "num_key_value_heads": 8, "vocab_size": 128_256},
    **{"max_position_embeddings": 2**20, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
}
RANK, PLACE, PROCESSES = (int(os.environ.get(name, "0")) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
ON_GPU = torch.cuda.is_available()
DEVICE = f"cuda:{PLACE}" if ON_GPU else "cpu"
BEGUN = time.monotonic()


def main(argv: list[str] | None = None) -> None:
    """Measure every way and length, and write after each."""
    parser = study.parser(__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[16_384, 131_072])
    parser.add_argument("--ways", nargs="+", choices=["tensor", "ulysses"], default=["tensor"])
    parser.add_argument("--price", type=float, default=0.5)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rope", type=RopeScaling.parse, help="as analyze takes it")
    parser.add_argument("--random", type=json.loads, help="a JSON object; {} is Llama-3.1-8B's shape itself")
    parser.add_argument("--reference", type=Path, required=True, help="what one process found")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no length after so many")
    asked = parser.parse_args(argv)
    if ON_GPU:
        torch.cuda.set_device(DEVICE)
    distributed.init_process_group(
        "nccl" if ON_GPU else "gloo", device_id=torch.device(DEVICE) if ON_GPU else None
    )
    reference: dict[int, Any] = (
        torch.load(asked.reference) if PROCESSES > 1 and asked.reference.exists() else {}
    )
    rows: list[dict[str, Any]] = []
    for way in asked.ways if PROCESSES > 1 else ["alone"]:
        loaded = load_in_turn(asked.model, PLACE, rope=asked.rope) if asked.random is None else _random(asked)
        header = {**origin(loaded, study.command(), asked.seed), "processes": PROCESSES, "rope": loaded.rope}
        ways = {"alone": lambda loaded: (loaded.model, None), "tensor": _tensor, "ulysses": _ulysses}
        model, group = ways[way](loaded)
        for tokens in asked.tokens:
            if _most(time.monotonic() - BEGUN) > asked.seconds:
                study.note(f"{way}, {tokens:,} tokens: left out, {asked.seconds:g} s are over")
                continue
            if loaded.tokenizer is None:
                made = torch.Generator().manual_seed(asked.seed)
                ids = torch.randint(model.config.vocab_size, (1, tokens), generator=made).to(DEVICE)
            else:
                ids = prompt_ids(loaded, asked.data / "prose" / "test", 1, tokens)
            found, row = measured(functools.partial(prefill, model, group, ids), asked.price, asked.repeats)
            if PROCESSES == 1:
                reference[tokens] = found
                torch.save(reference, asked.reference)
            elif tokens in reference:
                row |= compared(reference[tokens], found)
            rows.append({"way": way, "tokens": tokens, **row})
            if RANK == 0:
                study.note(str(rows[-1]))
                paths.write_json(asked.out, {**header, "price": asked.price, "rows": rows})
    distributed.destroy_process_group()


def prefill(model: Any, group: Any, ids: torch.Tensor, price: float = 0) -> tuple[torch.Tensor, float, Any]:
    """The last token's logits, float [V], the slowest process's ms, the record. No price: unrouted; group: Ulysses."""
    given = {"input_ids": ids}
    if group is not None:
        given["position_ids"] = torch.arange(ids.shape[1], device=DEVICE)[None]
        given = {name: whole.chunk(PROCESSES, 1)[RANK] for name, whole in given.items()}
    block: Any = nullcontext()
    if (
        price or group is not None
    ):  # the attention function that Ulysses is registered with works in route() alone
        least = 0 if price else 2**24
        block = route(model, price=price or 1.0, break_even_tokens=least, salt="parallel", group=group)
    with block as trace, nullcontext() if price else sdpa_kernel(DENSE["cudnn"] if ON_GPU else ANY["sdpa"]):
        _most(0.0)  # waits for the others, and for the GPU
        begun = time.perf_counter()
        logits = model(**given, logits_to_keep=1, use_cache=False).logits[0, -1].float()
        if ON_GPU:
            torch.cuda.synchronize()
        ms = _most(1e3 * (time.perf_counter() - begun))
    if group is not None:  # the last process has the last token
        distributed.broadcast(logits, PROCESSES - 1)
    return logits.cpu(), ms, record_of_all_ranks(trace) if price else None


@torch.no_grad()
def measured(run: Any, price: float, repeats: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What other processes compare with, and a row. run: prefill of a price."""
    if ON_GPU:
        torch.cuda.reset_peak_memory_stats()
    unrouted, ms, _ = run()
    run(price)
    long = ms > LONG_MS
    times: dict[str, list[float]] = {"unrouted": [ms] if long else [], "routed": []}
    for _ in range(1 if long else repeats):
        if not long:
            times["unrouted"].append(run()[1])
        routed, ms, record = run(price)
        times["routed"].append(ms)
    found = {"ms": times, "unrouted": unrouted, "routed": routed, "choices": {}}
    row = {"ms": times, "unrouted_over_routed": median(times["unrouted"]) / median(times["routed"])}
    row["peak_bytes"] = _most(torch.cuda.max_memory_allocated() if ON_GPU else 0)
    row["routed_to_unrouted"] = _distance(unrouted, routed)
    row["full_to_unrouted"] = None if long else _distance(unrouted, run(FULL)[0])
    if record is not None:  # the first process's
        told = record.run
        row |= {"area": told.density, "deciding_ms": told.probe_ms + told.index_ms + told.route_ms}
        row |= {"attention_ms": told.kernel_ms, "rank_load": json.loads(told.config_json).get("rank_load")}
        of_head = [((c.layer, c.head, c.segment), (c.pattern, c.budget, c.density)) for c in record.choices]
        found["choices"] = dict(of_head)
    return found, row


def compared(one: dict[str, Any], several: dict[str, Any]) -> dict[str, Any]:
    """One process's times over several's, and how far what they computed is apart."""
    row: dict[str, Any] = {f"{arm}_to_one": _distance(one[arm], several[arm]) for arm in one["ms"]}
    row["one_over_these"] = {arm: median(ms) / median(several["ms"][arm]) for arm, ms in one["ms"].items()}
    pairs = [(one["choices"][unit], choice) for unit, choice in several["choices"].items()]
    if pairs:
        row["equal_choices"] = fmean(own[:2] == other[:2] for own, other in pairs)
        row["equal_areas"] = fmean(own[2] == other[2] for own, other in pairs)
        row["area_difference"] = fmean(abs(own[2] - other[2]) for own, other in pairs)
    return row


def _most(own: float) -> float:
    """The largest of all processes' values, in each."""
    found = torch.tensor(own, dtype=torch.float64, device=DEVICE)
    distributed.all_reduce(found, distributed.ReduceOp.MAX)
    return found.item()


def _distance(one: torch.Tensor, other: torch.Tensor) -> dict[str, Any]:
    """Between logits [V]: the largest difference, KL(one, other) in nats, and whether the next token is the same."""
    own, its = one.double().log_softmax(-1), other.double().log_softmax(-1)
    kl, same = (own.exp() * (own - its)).sum().item(), bool(one.argmax() == other.argmax())
    return {"largest": (one - other).abs().max().item(), "kl": kl, "same_token": same}


def _random(asked: Any) -> LoadedModel:
    """The same weights in every process, made where they stay; device and dtype are those of a model that is loaded."""
    like = load_in_turn("demo", PLACE)
    torch.manual_seed(asked.seed)
    with torch.device(DEVICE):
        config = LlamaConfig(**LLAMA_8B | asked.random)
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, like.dtype)).eval()
    return replace(like, model=model, tokenizer=None, name=f"random {json.dumps(asked.random)}", revision="")


def _tensor(loaded: LoadedModel) -> tuple[Any, Any]:
    plan, old = DistributedConfig(tp_plan="auto"), loaded.model
    if loaded.tokenizer is None:  # weights in memory: what from_pretrained does
        plan, _, meshes = type(old).prepare_distribute_model(plan)
        return type(old).maybe_distribute_model(old, plan, meshes), None
    told = {"config": old.config, "dtype": loaded.dtype, "distributed_config": plan}
    return AutoModelForCausalLM.from_pretrained(loaded.tokenizer.name_or_path, **told).eval(), None


def _ulysses(loaded: LoadedModel) -> tuple[Any, Any]:
    """DeepSpeed stands before the attention function for the rest of the process."""
    # It would compile collectives in shared memory first, for minutes; gloo does without.
    vars(importlib.import_module("deepspeed.comm.torch"))["build_shm_op"] = lambda: None
    importlib.import_module("deepspeed").init_distributed(distributed.get_backend(), verbose=False)
    loaded.model.set_attn_implementation("routesparse")
    kind = importlib.import_module("deepspeed.runtime.sequence_parallel.ulysses_sp").UlyssesSPAttentionHF
    groups = kind.register_with_transformers(loaded.model, "routesparse", PROCESSES, micro_batch_size=1)
    return loaded.model, groups.get_sequence_parallel_group()


if __name__ == "__main__":
    study.run(main)
