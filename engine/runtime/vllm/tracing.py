"""What a tracer and Prometheus are told of each routed prompt, where vLLM has them in the process of its engine.

With --otlp-traces-endpoint vLLM sets a tracer provider there, and a prompt is a span ``routesparse.prefill`` beside
vLLM's ``llm_request``. Metrics reach vLLM's page through the files of PROMETHEUS_MULTIPROC_DIR. Where nobody listens
nothing is read of a prompt: its first token would wait for that, on a GPU some ms a layer.
"""

from __future__ import annotations

import functools
import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence

from prometheus_client import Gauge, Summary

from routesparse.engine.record.passes import LayerPass

# Attributes of a span, by their names; None is left out.
Figures = Mapping[str, float | str | None]


def is_heard() -> bool:
    """Whether a tracer or Prometheus is there to be told."""
    return "PROMETHEUS_MULTIPROC_DIR" in os.environ or _has_tracer()


def tell(
    about: Figures, passes: Sequence[LayerPass], began_ns: int, headers: Mapping[str, str] | None
) -> None:
    """A prompt's prefill ended. The area kept is a mean over its layers and chunks, times are sums.

    about: what its passes do not say. began_ns: of the epoch. headers: of its trace; None begins one of its own.
    """
    told: Figures = {
        **about,
        "routesparse.area": sum(one.density for one in passes) / len(passes),
        "routesparse.deciding_ms": sum(one.deciding_us for one in passes) / 1e3,
        "routesparse.attention_ms": sum(one.kernel_us for one in passes) / 1e3,
    }
    figures = {name: value for name, value in told.items() if value is not None}
    for name, measure in _metrics().items():
        if name in figures:
            measure(float(figures[name]))
    if _has_tracer():
        from opentelemetry import context
        from vllm.tracing import extract_trace_context, instrument_manual

        # With none vLLM takes that of its own start, which it keeps in the environment.
        parent = extract_trace_context(headers) or context.Context()
        state = random.getstate()
        random.seed()  # the SDK draws ids from it, and vLLM seeds it alike in all of its workers
        instrument_manual("routesparse.prefill", began_ns, None, figures, parent)
        random.setstate(state)


def _has_tracer() -> bool:
    sdk = sys.modules.get("opentelemetry.sdk.trace")
    if sdk is None:
        return False
    from opentelemetry import trace

    return isinstance(trace.get_tracer_provider(), sdk.TracerProvider)


@functools.cache
def _metrics() -> dict[str, Callable[[float], None]]:
    area = Summary("routesparse_area", "Share of dense attention's area that a routed prompt kept.")
    loss = Summary("routesparse_predicted_loss", "Nats a token that a routed prompt is predicted to lose.")
    price = Gauge("routesparse_price", "Price of the latest routed prompt.", multiprocess_mode="mostrecent")
    return {
        "routesparse.area": area.observe,
        "routesparse.loss": loss.observe,
        "routesparse.price": price.set,
    }
