"""What test_vllm_keeping.py asks of vLLM's CPU build, as vllm_runs.py does, whose helpers it uses. Bundled model."""

import json
import os
import random
from dataclasses import asdict, replace

import torch
import transformers
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import REGISTRY
from vllm_runs import (
    CHUNK,
    DEMO,
    DEMO_PROFILE,
    FOLDER,
    GREEDY,
    TOKENS,
    asking,
    engine,
    generate,
    lines,
    log,
    prompt,
    said,
    set_up,
)

from routesparse.engine.calibration import keeping_log
from routesparse.engine.models.load import load_model
from routesparse.engine.runtime.replay import Keeping, figures_of, replayed, rows_of
from routesparse.engine.runtime.session import RoutingSession
from routesparse.engine.runtime.transformers import routed_by
from routesparse.engine.runtime.vllm import plugin
from routesparse.engine.runtime.vllm.requests import prompt_digest
from routesparse.engine.seeds import stable_seed
from routesparse.engine.store.bundle import verified_tables

TRACE, PARENT = "ab" * 16, "cd" * 8
AIM = {"_LOSS": "0.01", "_CONFIG": '{"break_even_tokens": 0}'}
KEEP = {**AIM, "_KEEP": "1", "_KEEP_DENSE": "2", "_KEEP_PRICES": "0.3:0.55", "_SPOOL": str(FOLDER / "kept")}


def by_transformers(model, config, ids, *chunks):
    """What runtime/replay.py sees after the same chunks on transformers, and the KL to a dense prefill."""
    session = RoutingSession(config, None, profile=DEMO_PROFILE, salt=prompt_digest(ids))
    session.serve(model.config.num_hidden_layers)
    keeping, parts, tokens = Keeping(session), [], torch.tensor([ids])
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad(), routed_by(model, keeping):
        for part in tokens.split(chunks, dim=1):
            session.start()
            parts.append(model.base_model(part, past_key_values=cache).last_hidden_state[0])
            session.finish()
    run, stretches = torch.cat(parts), rows_of(len(ids) - 1, stable_seed("replay", prompt_digest(ids)))
    few, every = torch.from_numpy(stretches.flatten()), torch.arange(len(ids) - 1)
    again = replayed(model, {"input_ids": tokens[:, few]}, keeping.kept, few)
    with torch.no_grad():
        dense = model.base_model(tokens).last_hidden_state[0]
    kl, entropy, surprise = figures_of(model, again, run[few], tokens[0, few + 1])
    true = figures_of(model, dense[every], run[every], tokens[0, every + 1])[0]
    told = {"entropy": float(entropy.mean()), "surprise": float(surprise.mean()), "true": float(true.mean())}
    return {"replayed": kl.view(stretches.shape).mean(1).tolist(), **told}


def watched(keeping):
    """What each replay sees from now on."""
    found, stock = [], keeping.ended

    def ended(*given):
        seen = stock(*given)
        found.append({"replayed": seen.replayed.tolist(), "entropy": seen.entropy, "surprise": seen.surprise})
        return seen

    keeping.ended = ended
    return found


def traced(llm, request, ids, params, headers=None):
    """The span of one more request, as an exporter gets it: trace, parent, attributes."""
    exporter, core = InMemorySpanExporter(), llm.llm_engine
    trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))
    random.seed(0)  # as vLLM's workers begin
    core.add_request(request, {"prompt_token_ids": ids}, params, trace_headers=headers)
    while core.has_unfinished_requests():
        core.step()
    (span,) = (one for one in exporter.get_finished_spans() if one.name == "routesparse.prefill")
    parent = span.parent and f"{span.parent.span_id:016x}"
    return f"{span.context.trace_id:032x}", parent, {**span.attributes}


def main():
    log.addFilter(lambda line: lines.append((line.levelname, line.getMessage())) or True)
    os.environ["ROUTESPARSE_VLLM"] = "1"
    plugin.register()
    llm = engine(model=str(DEMO), max_num_batched_tokens=CHUNK)
    set_up(llm, None, 0, DEMO_PROFILE, **AIM)
    found = {"not kept": generate(llm, prompt(1))[0]}
    trace.set_tracer_provider(TracerProvider())
    requests = set_up(llm, None, 1, DEMO_PROFILE, **KEEP)
    found["seen"], config = watched(requests.keeping), requests.chosen.config
    said()
    found["kept"] = [generate(llm, prompt(seed))[0] for seed in (1, 2)]
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    found["spans"] = [
        traced(llm, "3", prompt(1), asking(routesparse_loss=0.1), headers),
        traced(llm, "4", prompt(1, 900), GREEDY),
        traced(llm, "5", prompt(2, 900), GREEDY),
    ]
    found["metrics"] = {
        name: REGISTRY.get_sample_value(f"routesparse_{name}")
        for name in ("area_count", "area_sum", "predicted_loss_count", "predicted_loss_sum", "price")
    }
    found["said"], path = said(), keeping_log.log_of("demo", 0.01)
    found["log"] = [asdict(one) for one in keeping_log.read(path)]
    model = load_model("demo").model
    found["ours"] = [
        by_transformers(model, replace(config, price=one["price"]), prompt(seed), CHUNK, TOKENS - CHUNK)
        for seed, one in zip((1, 2), found["log"], strict=True)
    ]
    runs = [verified_tables(path)[1]["run"].to_pylist()[0] for path in (FOLDER / "kept").iterdir()]
    runs.sort(key=lambda run: int(run["prompt_name"].split("-")[0]))
    found["recorded"] = [
        [run[name] for name in ("loss_nats", "loss_target", "loss_fit", "density")] for run in runs
    ]
    found["next"] = set_up(llm, None, 0, DEMO_PROFILE, **KEEP).keeping.keeper.state.price
    print("RESULTS")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
