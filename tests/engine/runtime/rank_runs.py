"""What one process of a tensor-parallel model does in test_tensor_parallel.py; started by torchrun, gloo on a CPU.

The test starts two; with four, by hand:
    .venv/bin/torchrun --nproc-per-node 4 tests/engine/runtime/rank_runs.py OUT
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch
import transformers
from torch import distributed
from transformers.distributed import DistributedConfig

from routesparse.engine import route
from routesparse.engine.errors import RouteSparseError
from routesparse.engine.profiles.shape import AttentionShape
from routesparse.engine.runtime.tensor_parallel import record_of_all_ranks
from routesparse.engine.store.bundle import write_bundle

sys.path.append(str(Path(__file__).parents[1]))
tiny_shape = importlib.import_module("tiny_shape")
CONFIG = tiny_shape.config(256)
# Dense tiles are dear: sparse kernels run at full budget too.
PROFILE = tiny_shape.profile(dense_tile_us=30)
TOKENS = 512
SALT = "one"


def llama(kv_heads: int) -> transformers.LlamaForCausalLM:
    """The same random model in every process."""
    return tiny_shape.decoder(num_attention_heads=8, num_key_value_heads=kv_heads)


def split(model: transformers.LlamaForCausalLM) -> transformers.LlamaForCausalLM:
    """As from_pretrained(tp_plan="auto") does, which wants accelerate and files, but always on the CPU."""
    # Where PyTorch is built for CUDA it names a GPU, seen or not, and each process would want one of its own.
    torch._C._get_accelerator = lambda: torch.device("cpu")
    config, _, meshes = type(model).prepare_distribute_model(DistributedConfig(tp_plan="auto"))
    return type(model).maybe_distribute_model(model, config, meshes)


def prompt() -> torch.Tensor:
    return torch.randint(0, 97, (1, TOKENS), generator=torch.Generator().manual_seed(1))


def chosen(choices) -> list:
    return [
        [c.layer, c.head, c.pattern, c.budget, round(c.mass, 4), round(c.lower_mass or 0, 4)] for c in choices
    ]


def parity(out: Path) -> dict:
    """Full budget and a price, against the whole model in this very process; the bundle of all ranks."""
    whole, model = llama(4), split(llama(4))
    found: dict = {}
    with torch.no_grad():
        for name, config in (("full", replace(CONFIG, price=1e-6)), ("priced", replace(CONFIG, price=1.0))):
            with route(whole, config, profile=PROFILE, salt=SALT) as alone:
                expected = whole(prompt()).logits
            with route(model, config, profile=PROFILE, salt=SALT) as trace:
                logits = model(prompt()).logits
            found.setdefault("full_logits", logits)
            record = record_of_all_ranks(trace)
            found[name] = {
                "difference": (logits - expected).abs().max().item(),
                "own": chosen(trace.decisions),
                "alone": chosen(alone.decisions),
                "density": alone.record().run.density,
                "all": None if record is None else chosen(record.choices),
            }
            if record is not None:
                found[name]["bundle"] = str(write_bundle(record, out / name))
        dense = whole(prompt()).logits
        found["unrouted_difference"] = (model(prompt()).logits - dense).abs().max().item()
        found["full_difference"] = (found.pop("full_logits") - dense).abs().max().item()
        # Only the first process finds a profile of this name; the others would have to measure.
        os.environ["ROUTESPARSE_HOME"] = str(out / f"home {os.environ['RANK']}")
        if distributed.get_rank() == 0:
            shape = AttentionShape(
                torch.device("cpu"), torch.float32, 16, 8 // distributed.get_world_size(), 2
            )
            replace(PROFILE, name=shape.profile_name(CONFIG)).save(out / "home 0" / "profiles")
        with route(model, CONFIG) as trace:
            model(prompt())
        found["shared"] = [trace.salt, trace.settings.profile.costs]
        try:
            trace.record()
        except RouteSparseError as error:
            found["own_record"] = str(error)
    return found


def refused(out: Path) -> dict:
    """One KV head cannot be split."""
    model = split(llama(1))
    try:
        with route(model, CONFIG):
            model(prompt())
    except RouteSparseError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {}


def poisoned(out: Path) -> dict:
    """NaN in the queries of the last process alone; afterwards the group still works."""
    model = split(llama(4))
    weight = model.model.layers[1].self_attn.q_proj.weight.to_local()
    kept = weight.clone()
    found: dict = {}
    with torch.no_grad(), route(model, CONFIG, profile=PROFILE, salt=SALT) as trace:
        if is_last():
            weight[0, 0] = torch.nan
        try:
            model(prompt())
        except RouteSparseError as error:
            found["error"] = f"{type(error).__name__}: {error}"
        found["prompts"] = len(trace.prompts)
        weight.copy_(kept)
        model(prompt())
        found["afterwards"] = len(trace.decisions)
    return found


def left(out: Path) -> dict:
    """An error of the last process's own code; the others wait for it in the next forward pass."""
    model = split(llama(4))
    try:
        with torch.no_grad(), route(model, CONFIG, profile=PROFILE, salt=SALT):
            model(prompt())
            if is_last():
                raise KeyError("a table that only this process reads")
            model(prompt())
    except (KeyError, RouteSparseError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {}


def is_last() -> bool:
    return distributed.get_rank() == distributed.get_world_size() - 1


def main(out: Path) -> None:
    # The last one ends the group.
    found = {run.__name__: run(out) for run in (parity, refused, poisoned, left)}
    (out / f"{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    # Whatever hangs, no process outlives the test, and each says where it was.
    faulthandler.dump_traceback_later(240, exit=True)
    main(Path(sys.argv[1]))
