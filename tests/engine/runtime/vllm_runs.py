"""What test_vllm_engine.py asks of vLLM's CPU build, in a process of its own, with the Python of ``make vllm``.

Its argument is an empty folder; the test sets the environment. Prints one JSON object after the line RESULTS: of each
run the log-probability of every prompt token and the tokens that followed, of our path through transformers the same,
what batches held, what was recorded and what was refused.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch
import transformers
import vllm
from vllm import LLM, SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.attention import selector
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from routesparse.engine import paths
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import InputError
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.models.load import load_model
from routesparse.engine.runtime.quality import Chosen
from routesparse.engine.runtime.route import route
from routesparse.engine.runtime.vllm import plugin
from routesparse.engine.runtime.vllm.requests import Requests, log, prompt_digest
from routesparse.engine.store.bundle import verified_tables

FOLDER = Path(sys.argv[1])
TOKENS, CHUNK, PAGE = 1400, 768, 128
PROFILE = LatencyProfile("p", "d", "torch", "float32", 32, 2, 1, 128, 64, 0, 10, 0, 0, 10, 0, 0, 0, 0)
PRICED = RouterConfig(break_even_tokens=0, price=2.0)  # of random weights some 60 % of the area
DENSE = RouterConfig(break_even_tokens=0, policy="certified", tau=1.0)  # every plan is the whole area
SHAPE = dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)
SHAPE |= dict(num_key_value_heads=2, head_dim=32, max_position_embeddings=4096, initializer_range=0.3)
SHAPE |= dict(pad_token_id=0, eos_token_id=None)
GREEDY = SamplingParams(max_tokens=4, temperature=0.0, prompt_logprobs=0, detokenize=False)
DEMO, DEMO_PROFILE = paths.DATA / "models" / "demo", replace(PROFILE, head_dim=64)
batches, ids, lines = [], [], []


def prompt(seed, tokens=TOKENS):
    return torch.randint(3, 97, (tokens,), generator=torch.Generator().manual_seed(seed)).tolist()


def engine(**options):
    """Pages for two prompts of TOKENS tokens and 10 tokens more each, so that two that go on preempt each other."""
    lines.clear()
    return LLM(
        **{
            "model": str(FOLDER / "model"),
            "skip_tokenizer_init": True,
            "dtype": "float32",
            "enforce_eager": True,
            "enable_prefix_caching": False,
            "block_size": PAGE,
            "max_model_len": 2048,
            "max_num_batched_tokens": 4096,
            "num_gpu_blocks_override": 23,
            "disable_log_stats": True,
            **options,
        }
    )


def runner_of(llm):
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


def set_up(llm, config=None, every=0, profile=PROFILE, **given):
    """Route with this configuration or these settings from now on; the requests that the engine then holds."""
    values = {"": "1", "_RECORD_EVERY": str(every)} | given
    environment = {f"ROUTESPARSE_VLLM{name}": value for name, value in values.items()}
    runner = runner_of(llm)
    requests = plugin._requests(runner, plugin.from_environment(environment, on_gpu=False))
    requests.chosen = requests.chosen if config is None else Chosen(config)
    requests.profile = profile
    runner._routesparse_requests = requests
    return requests


def told(out):
    scores = (
        [next(iter(one.values())).logprob for one in out.prompt_logprobs[1:]] if out.prompt_logprobs else []
    )
    return {"scores": scores, "tokens": list(out.outputs[0].token_ids)}


def said():
    """What our log said since the last call: level and text."""
    told = list(lines)
    lines.clear()
    return told


def asking(**extra):
    params = GREEDY.clone()
    params.extra_args = extra
    return params


def generate(llm, *prompts, params=GREEDY):
    found = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    return [told(out) for out in found]


def by_transformers(model, ids, *chunks, **settings):
    """Our own path: the same chunks through a cache, with the same random rows, at the same price or these settings."""
    given = settings or {"config": PRICED, "profile": PROFILE}
    cache, logits, salt = transformers.DynamicCache(config=model.config), [], prompt_digest(ids)
    with route(model, salt=salt, **given) as trace, torch.no_grad():
        for part in torch.tensor([ids]).split(chunks, dim=1):
            logits.append(model(part, past_key_values=cache).logits[0])
    scores = torch.cat(logits)[:-1].log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])
    return {"scores": scores[:, 0].tolist(), "density": [p.density for p in trace.prompts[-1].passes]}


def spied():
    """Note what every batch of a routed engine holds: (tokens, context, routed) of its rows."""
    stock = Requests.choose

    def choose(self, rows, prompt_of):
        routed = stock(self, rows, prompt_of)
        ids.extend(row.request for row in routed)
        batches.append([(row.tokens, row.context, row in routed) for row in rows])
        return routed

    Requests.choose = choose


def mixed(llm):
    """A short prompt that decodes while a long one comes in chunks."""
    core, done = llm.llm_engine, {}
    core.add_request(
        "short", {"prompt_token_ids": prompt(3, 40)}, SamplingParams(max_tokens=8, temperature=0.0)
    )
    core.step()
    core.add_request("long", {"prompt_token_ids": prompt(1)}, GREEDY)
    while core.has_unfinished_requests():
        for out in core.step():
            if out.finished:
                done[out.request_id] = told(out)
    return done


def cancelled(llm, requests):
    """A long prompt that goes away between its chunks; what is held of it, and the next prompt."""
    core = llm.llm_engine
    core.add_request("gone", {"prompt_token_ids": prompt(2)}, GREEDY)
    core.step()
    held = len(requests._open)
    core.abort_request(["gone"])
    after = generate(llm, prompt(1))[0]
    return {"held": held, "left": len(requests._open), "after": after}


def recorded(spool=FOLDER / "home" / "spool"):
    """What the bundles say, in the order of the requests: names of one second's bundles have none."""
    runs = []
    for path in spool.iterdir():
        tables = verified_tables(path)[1]
        run = tables["run"].to_pylist()[0]
        config = json.loads(run["config_json"])
        runs.append(
            {
                "prompt": run["prompt_name"],
                **{name: config.get(name) for name in ("served", "cached_tokens")},
                **{name: run[name] for name in ("tokens", "routed", "density")},
                "densities": tables["layer_run"]["density"].to_pylist(),
                "has_text": (path / "prompt.parquet").exists(),
            }
        )
    return sorted(runs, key=lambda run: int(run["prompt"].split("-")[0]))


def another_version():
    """What a vLLM that was never compared is told, and whether it is changed all the same."""
    tested, vllm.__version__ = vllm.__version__, "0.30.9"
    try:
        plugin.register()
    except InputError as error:
        return str(error), AttentionBackendEnum.CPU_ATTN.is_overridden()
    finally:
        vllm.__version__ = tested
    return "served", True


def asked(llm):
    """Requests of one engine, and of one batch, that ask for routing of their own."""
    set_up(llm, PRICED, _SPOOL=str(FOLDER / "asked"))
    said()
    both = [asking(routesparse_route=0), asking(routesparse_record=1)]
    found = {"pair": generate(llm, prompt(1), prompt(2), params=both), "recorded": recorded(FOLDER / "asked")}
    found["unfitted"] = generate(llm, prompt(1), params=asking(routesparse_loss=0.02))[0]
    found["said"] = said()
    try:
        generate(llm, prompt(1), params=asking(routesparse_route="no"))
    except VLLMValidationError as error:
        found["refused"] = str(error)
    found["after"] = generate(llm, prompt(1))[0]
    try:
        set_up(llm, _LOSS="0.01")
    except InputError as error:
        found["start without a fit"] = f"{type(error).__name__}: {error}"
    return found


def by_fit():
    """The bundled model by its own fit: as the settings say, as one request asks, and not routed."""
    served = engine(model=str(DEMO))
    said()
    config = '{"break_even_tokens": 0}'
    set_up(served, None, 0, DEMO_PROFILE, _LOSS="0.01", _CONFIG=config)
    found = {"said": said()}
    for name, extra in {
        "0.01": {},
        "0.1": {"routesparse_loss": 0.1},
        "stock": {"routesparse_route": 0},
    }.items():
        found[name] = generate(served, prompt(1), params=asking(**extra))[0]
    loaded = load_model("demo").model
    for loss in (0.01, 0.1):
        ours = {"loss": loss, "profile": DEMO_PROFILE, "break_even_tokens": 0}
        found[f"ours {loss}"] = by_transformers(loaded, prompt(1), TOKENS, **ours)
    return found


def windowed(model):
    """A model whose first layer has a sliding window: at full budget, and not routed."""
    model.config.layer_types, model.config.sliding_window = ["sliding_attention", "full_attention"], 256
    model.save_pretrained(FOLDER / "windowed")
    llm = engine(model=str(FOLDER / "windowed"), num_gpu_blocks_override=64)
    found = {"said": said()}
    set_up(llm, DENSE)
    found["full budget"] = generate(llm, prompt(1))[0]
    found["stock"] = generate(llm, prompt(1), params=asking(routesparse_route=0))[0]
    return found


def prefix_cached():
    """Two prompts that begin alike, one behind the other: at full budget, routed, and other ways in between."""
    llm = engine(enable_prefix_caching=True, num_gpu_blocks_override=128)
    first, second = prompt(1), prompt(1)[:CHUNK] + prompt(2)[CHUNK:]

    def ask(ids, **extra):
        # A request for scores of its prompt would read no cache.
        params = SamplingParams(max_tokens=4, temperature=0.0, logprobs=0, extra_args=extra, detokenize=False)
        (out,) = llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)
        scores = [next(iter(one.values())).logprob for one in out.outputs[0].logprobs]
        return {"cached": out.num_cached_tokens, "scores": scores, "tokens": list(out.outputs[0].token_ids)}

    set_up(llm, DENSE)
    found = {"full budget": [ask(first), ask(second)], "stock": ask(second, routesparse_route=0)}
    llm.reset_prefix_cache()
    set_up(llm, PRICED, every=1, _SPOOL=str(FOLDER / "cached"))
    batches.clear()
    found["routed"] = [ask(ids) for ids in (first, second, second)]
    found["batches"] = [rows for rows in batches if rows[0][0] > 1]
    found["other ways"] = [ask(second, routesparse_route=0), ask(second, routesparse_loss=0.02)]
    return found | {"recorded": recorded(FOLDER / "cached")}


def not_ours():
    """An engine whose layers another backend serves."""
    AttentionBackendEnum.CPU_ATTN.clear_override()
    selector._cached_get_attn_backend.cache_clear()
    llm = engine()
    return {"said": said(), **generate(llm, prompt(1))[0]}


def main():
    log.addFilter(lambda line: lines.append((line.levelname, line.getMessage())) or True)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE)).eval()
    model.save_pretrained(FOLDER / "model")
    found = {}
    stock = engine()
    found["stock"] = generate(stock, prompt(1))[0]
    found["stock short"] = generate(
        stock, prompt(3, 40), params=SamplingParams(max_tokens=8, temperature=0.0)
    )[0]
    long = SamplingParams(max_tokens=16, temperature=0.0)
    found["stock long"] = generate(stock, prompt(1), params=long) + generate(stock, prompt(2), params=long)
    del stock

    os.environ["ROUTESPARSE_VLLM"] = "1"
    found["another version"], found["overridden by it"] = another_version()
    plugin.register()
    plugin.register()  # vLLM may call it twice
    selector._cached_get_attn_backend.cache_clear()  # the engine before this one was not routed
    spied()
    whole = engine()
    found["said at the start"] = said()
    ours = AttentionBackendEnum.CPU_ATTN.get_class()
    found["found by its own path"] = resolve_obj_by_qualname(".".join(ours.full_cls_name())) is ours
    set_up(whole, DENSE)
    found["full budget"] = generate(whole, prompt(1))[0]
    ids.clear()
    set_up(whole, PRICED, every=2)
    found["routed"] = generate(whole, prompt(1))[0]
    found["routed pair"] = generate(whole, prompt(1), prompt(2))
    found["recorded"] = recorded()
    found["request ids"] = list(ids)
    set_up(whole, DENSE)
    batches.clear()
    found["preempted"] = generate(whole, prompt(1), prompt(2), params=long)
    found["preempted batches"] = list(batches)
    found["asked"] = asked(whole)
    del whole

    chunked = engine(max_num_batched_tokens=CHUNK)
    set_up(chunked, DENSE)
    found["full budget, chunked"] = generate(chunked, prompt(1))[0]
    requests = set_up(chunked, PRICED)
    found["routed, chunked"] = generate(chunked, prompt(1))[0]
    batches.clear()
    found["mixed"] = mixed(chunked)
    found["mixed batches"] = list(batches)
    found["cancelled"] = cancelled(chunked, requests)
    del chunked

    rest = TOKENS - CHUNK
    found["transformers"] = by_transformers(model, prompt(1), TOKENS)
    found["transformers of the second"] = by_transformers(model, prompt(2), TOKENS)
    found["transformers, chunked"] = by_transformers(model, prompt(1), CHUNK, rest)
    found["transformers, mixed"] = by_transformers(model, prompt(1), CHUNK - 1, rest + 1)
    found["prefix caching"] = prefix_cached()
    found["by fit"] = by_fit()
    found["windowed"] = windowed(model)
    found["not ours"] = not_ours()
    print("RESULTS")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
