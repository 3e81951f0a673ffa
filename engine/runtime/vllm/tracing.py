"""What a tracer and Prometheus are told of each routed prompt, where vLLM has them in the process of its engine.

With --otlp-traces-endpoint vLLM sets a tracer provider there, and a prompt is a span ``routesparse.prefill`` beside
vLLM's ``llm_request``. Metrics reach vLLM's page through the files of PROMETHEUS_MULTIPROC_DIR.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import Gauge, Summary

from routesparse.engine.record.passes import LayerPass


@dataclass(frozen=True)
class Prefill:
    """One routed prompt."""

    request: str
    began_ns: int  # of the epoch: its first chunk was scheduled
    tokens: int
    cached_tokens: int
    passes: Sequence[LayerPass]
    price: float | None  # None: its policy has none
    loss_target: float | None  # nats a token, as the loss that is predicted
    loss: float | None
    recorded: bool

    @property
    def area(self) -> float:
        """The share of dense attention that was kept: a mean over layers and chunks."""
        return sum(one.density for one in self.passes) / len(self.passes)

    def figures(self) -> dict[str, Any]:
        """A span's attributes; times are sums over layers and chunks."""
        found = {
            "gen_ai.request.id": self.request,
            "gen_ai.usage.prompt_tokens": self.tokens,
            "routesparse.cached_tokens": self.cached_tokens,
            "routesparse.area": self.area,
            "routesparse.price": self.price,
            "routesparse.loss_target": self.loss_target,
            "routesparse.loss": self.loss,
            "routesparse.deciding_ms": sum(one.deciding_us for one in self.passes) / 1e3,
            "routesparse.attention_ms": sum(one.kernel_us for one in self.passes) / 1e3,
            "routesparse.recorded": self.recorded,
        }
        return {name: value for name, value in found.items() if value is not None}


def tell(prefill: Prefill, headers: Mapping[str, str] | None) -> None:
    """A prompt's prefill ended. headers: of its trace; None begins one of its own."""
    for metric, value in zip(_metrics(), (prefill.area, prefill.loss, prefill.price), strict=True):
        if value is not None:
            metric(value)
    sdk = sys.modules.get("opentelemetry.sdk.trace")
    if sdk is None:
        return
    from opentelemetry import context, trace
    from vllm.tracing import extract_trace_context, instrument_manual

    if isinstance(trace.get_tracer_provider(), sdk.TracerProvider):
        # With none vLLM takes that of its own start, which it keeps in the environment.
        parent = extract_trace_context(headers) or context.Context()
        state = random.getstate()
        random.seed()  # the SDK draws ids from it, and vLLM seeds it alike in all of its workers
        instrument_manual("routesparse.prefill", prefill.began_ns, None, prefill.figures(), parent)
        random.setstate(state)


@functools.cache
def _metrics() -> tuple[Callable[[float], None], ...]:
    return (
        Summary("routesparse_area", "Share of dense attention's area that a routed prompt kept.").observe,
        Summary(
            "routesparse_predicted_loss", "Nats a token that a routed prompt is predicted to lose."
        ).observe,
        Gauge("routesparse_price", "Price of the latest routed prompt.", multiprocess_mode="mostrecent").set,
    )
