"""Memory ends within routed prefills, on the GPU if there is one: ``python tests/faults/out_of_memory.py``.

Each round may take a share of what a prefill needs. Then: an error of its kind, the model restored, no more
memory held than after a prefill that ends, and that one like dense. The first round that is wrong ends the script.
"""

import contextlib
import ctypes
import gc
import json
import resource
import traceback
from pathlib import Path

import torch

from routesparse.engine import RouterConfig, paths, route
from routesparse.engine.errors import PromptError, is_out_of_memory
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.models.load import load_model

GPU = torch.cuda.is_available()
MOST_KL = 0.05  # nats a token between dense and routed; a tenth of it is usual
TOKENS, SHARES = (32_768, (1.0, 0.02, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.97)) if GPU else (1_024, (0.02, 0.05))
ROUTED, DENSE = RouterConfig(break_even_tokens=0), RouterConfig(break_even_tokens=1 << 20)
PROFILE = LatencyProfile.load(next((paths.DATA / "profiles").glob(f"{'cuda' if GPU else 'cpu'}*d64-g2*")))
CPU_BYTES = 64 << 20  # what a prefill needs on a CPU, about; on a GPU the first round measures it


def held():
    """Bytes of live tensors."""
    gc.collect()
    live = [x.untyped_storage() for x in gc.get_objects() if type(x) is torch.Tensor and not GPU]
    return torch.cuda.memory_allocated() if GPU else sum({x.data_ptr(): x.nbytes() for x in live}.values())


def limit(more):
    """Let this process take so many bytes more; None: any."""
    if not GPU:
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        return resource.setrlimit(resource.RLIMIT_AS, (-1 if more is None else size + more, -1))
    torch.cuda.empty_cache()
    share = ((more or 0) + torch.cuda.memory_reserved()) / torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(1.0 if more is None else share)


@torch.no_grad()
def prefill(model, ids, config, more=None):
    """Log-probabilities of the last rows, or where memory ended."""
    own = model.config._attn_implementation
    try:
        with route(model, config, profile=PROFILE) as trace:
            limit(more)
            out = model(ids, logits_to_keep=128, use_cache=False).logits.float().log_softmax(-1)
        assert (config is ROUTED) == any(unit.pattern != "dense" for unit in trace.decisions)
    except (RuntimeError, MemoryError) as error:
        assert is_out_of_memory(error), repr(error)
        with contextlib.suppress(PromptError):
            assert trace.decisions == (), "half a prompt can be read"
        frames = traceback.extract_tb(error.__traceback__)[-3:]
        out = [f"{Path(at.filename).name}:{at.lineno}" for at in frames]
    finally:
        limit(None)
    assert model.config._attn_implementation == own, "the model was not restored"
    return out


model, tokenizer = (loaded := load_model()).model, loaded.tokenizer
text = " ".join(file.read_text() for file in sorted((paths.DATA / "samples" / "prompts").glob("*.txt")))
ids, ended, needs = torch.tensor([tokenizer(text * 2)["input_ids"]], device=loaded.device), 0, CPU_BYTES
# M_MMAP_MAX, M_MMAP_THRESHOLD: a CPU's freed tensors go back to the system, though load_model() had them kept.
assert ctypes.CDLL(None).mallopt(-4, 1 << 16) and ctypes.CDLL(None).mallopt(-3, 1 << 16)
ctypes.CDLL(None).malloc_trim(0)
for place, share in enumerate(SHARES):
    mine = ids[:, 128 * place : TOKENS]  # a length of its own, of which no CUDA graph is there yet
    dense, before = prefill(model, mine, DENSE), held()
    found = prefill(model, mine, ROUTED, int(share * needs) if share < 1 else None)
    if share == 1:
        needs = torch.cuda.max_memory_allocated() - before
    where, found = found if isinstance(found, list) else None, None
    ended, kept = ended + bool(where), held() - before
    following = prefill(model, mine, ROUTED)
    kl, following = float((dense.exp() * (dense - following)).sum(-1).mean()), None
    told = {"share": share, "ended at": where, "kept": kept, "kept after the next": held() - before, "kl": kl}
    print(json.dumps(told), flush=True)
    assert kl < MOST_KL and kept <= told["kept after the next"] + (1 << 20)
assert ended > len(SHARES) // 2, f"memory ended in {ended} of {len(SHARES)} rounds only; change SHARES"
