"""Real attention inputs: the lab checkpoint run dense on three prompts, every layer's q, k, v kept. CPU only."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from routesparse.engine.config import RouterConfig
from routesparse.engine.decide.decision import Decision, LayerSettings
from routesparse.engine.decide.layer import decide
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.method.attend import dense_attention
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.method.segments import split
from routesparse.engine.models.load import load_model
from routesparse.engine.runtime.attention_router import AttentionRouter
from routesparse.engine.runtime.transformers import routed_by

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
TOKENS = 2_048
KINDS = ("prose", "code", "needle")


# Blocks of 64 x 32 give 2,048 tokens the resolution that 64 x 128 gives 8,192.
CONFIG = RouterConfig(block_q=64, block_k=32, tail_tokens=64, segment_tokens=4_096, break_even_tokens=0)


class Recorder(AttentionRouter):
    """An attention router that runs dense and keeps what each layer was given."""

    def __init__(self) -> None:
        self.seen: dict[int, AttentionInputs] = {}

    def attend(self, inputs: AttentionInputs, *, layer: int, window: int | None = None) -> torch.Tensor:
        inputs = replace(inputs, q=inputs.q.contiguous())
        self.seen[layer] = inputs
        return dense_attention(inputs, window)


@dataclass
class Lab:
    """The checkpoint and, per prompt, what each layer's attention reads."""

    loaded: Any
    config: RouterConfig = CONFIG
    _seen: dict[tuple[str, int], dict[int, AttentionInputs]] = field(default_factory=dict)

    _decided: dict[tuple[str, int], Decision] = field(default_factory=dict)

    @classmethod
    def load(cls) -> Lab:
        folder = SHARED / "lab_model"
        if not (folder / "model.safetensors").is_file():
            pytest.skip("the lab checkpoint is not in ../shared/data/lab_model")
        return cls(load_model(str(folder), device="cpu"))

    def layers(self, kind: str, tokens: int = TOKENS) -> dict[int, AttentionInputs]:
        """Attention inputs by layer: q [1, 8, n, 64], k and v [1, 4, n, 64], float32."""
        if (kind, tokens) not in self._seen:
            recorder = Recorder()
            with torch.no_grad(), routed_by(self.loaded.model, recorder):
                self.loaded.model(self.ids(kind, tokens), logits_to_keep=1, use_cache=False)
            self._seen[kind, tokens] = recorder.seen
        return self._seen[kind, tokens]

    def decision(self, kind: str, layer: int, profile: LatencyProfile) -> Decision:
        """What is decided for one layer under CONFIG, gate .925 and no limit."""
        if (kind, layer) not in self._decided:
            inputs = self.layers(kind)[layer]
            segment = split(inputs.q.shape[2], inputs.k.shape[2], self.config)[-1]
            settings = LayerSettings(self.config, self.config.effective_gate_threshold, profile)
            self._decided[kind, layer] = decide(inputs, segment, layer, settings)
        return self._decided[kind, layer]

    def ids(self, kind: str, tokens: int = TOKENS) -> torch.Tensor:
        """int64 [1, tokens], bos first."""
        # Two to five characters make a token.
        text = prompt_text(kind, 8 * tokens)
        body = self.loaded.tokenizer(text, add_special_tokens=False)["input_ids"]
        if kind == "needle":  # the question stands at the end
            question = self.loaded.tokenizer(QUESTION, add_special_tokens=False)["input_ids"]
            body = [*body[: tokens - 1 - len(question)], *question]
        ids = [0, *body[: tokens - 1]]
        assert len(ids) == tokens
        return torch.tensor([ids])


QUESTION = (
    "\nWhat are all the special magic numbers for amber-walnut mentioned in the provided text? They are:"
)


def prompt_text(kind: str, characters: int) -> str:
    """Prose and code from the test splits; needles among needles for "needle"."""
    if kind == "needle":
        g = random.Random(0)
        words = (
            "amber",
            "walnut",
            "river",
            "cobalt",
            "meadow",
            "lantern",
            "silver",
            "harbor",
            "cedar",
            "violet",
        )
        lines = []
        while sum(map(len, lines)) < characters:
            key = f"{g.choice(words)}-{g.choice(words)}-{g.choice(words)}"
            lines.append(f"One of the special magic numbers for {key} is: {g.randrange(10**6, 10**7)}.")
        lines.insert(7, "One of the special magic numbers for amber-walnut is: 4817263.")
        return "\n".join(lines)
    files = sorted(path for path in (SHARED / kind / "test").iterdir() if path.is_file())
    return files[0].read_text(encoding="utf-8", errors="strict")[2_000 : 2_000 + characters]
