"""What one process does in test_ulysses.py: half a prompt, by DeepSpeed's Ulysses; by torchrun, gloo on a CPU."""

from __future__ import annotations

import faulthandler
import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import deepspeed
import torch
from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
from rank_runs import CONFIG, PROFILE, SALT, TOKENS, chosen, llama, prompt
from torch import distributed

from routesparse.engine import route
from routesparse.engine.runtime.tensor_parallel import record_of_all_ranks


def main(out: Path) -> None:
    expected, found = {}, {}
    with torch.no_grad():
        # In one process first: DeepSpeed puts itself before the attention function for good.
        for price in (1e-6, 1.0):
            whole = llama(4)
            with route(whole, replace(CONFIG, price=price), profile=PROFILE, salt=SALT) as alone:
                logits = whole(prompt()).logits
            expected[price] = logits, chosen(alone.decisions)
        model = llama(4)
        model.set_attn_implementation("routesparse")
        # Its collectives in shared memory would be compiled first, for minutes; gloo does without.
        importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
        groups = UlyssesSPAttentionHF.register_with_transformers(
            model_name_or_path=model,
            core_attn_implementation="routesparse",
            sequence_parallel_size=distributed.get_world_size(),
            micro_batch_size=1,
        )
        rank, part = distributed.get_rank(), TOKENS // distributed.get_world_size()
        mine = slice(rank * part, (rank + 1) * part)
        for price, (logits, choices) in expected.items():
            with route(
                model,
                replace(CONFIG, price=price),
                profile=PROFILE,
                salt=SALT,
                group=groups.get_sequence_parallel_group(),
            ) as trace:
                shard = model(
                    prompt()[:, mine], position_ids=torch.arange(TOKENS)[None, mine], use_cache=False
                )
            record = record_of_all_ranks(trace)
            found[str(price)] = {
                "difference": (shard.logits - logits[:, mine]).abs().max().item(),
                "same": None if record is None else chosen(record.choices) == choices,
                "tokens": None if record is None else record.run.tokens,
                "density": None if record is None else record.run.density,
            }
    (out / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    faulthandler.dump_traceback_later(240, exit=True)
    main(Path(sys.argv[1]))
