"""Trains the example indexer (engine/lab/rivals/scorers/indexer.py) on a model's own attention, and measures it.

    python -m routesparse.engine.lab.studies.indexer --out data/baselines/indexer_demo.safetensors

Windows of the train split run dense once; of each layer sampled rows are kept with their exact attention, averaged over
heads. Then KL(p | softmax I) falls by Adam, apart for every layer. On windows of the calibration split, per layer: the
mass that the best ``--keys`` keys of a row hold by the indexer, by exact attention (the most that any choice holds) and
by the window of the last ``--keys`` keys. The file's metadata has these and the command; it is float16.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F

from routesparse.engine import paths
from routesparse.engine.calibrate.prompts import cut, read_documents
from routesparse.engine.lab import study
from routesparse.engine.lab.rivals.rule import RuleRouter, Selection, View
from routesparse.engine.lab.rivals.scorers.indexer import NAMES, LayerIndexer
from routesparse.engine.models.load import LoadedModel, load_model
from routesparse.engine.runtime.transformers import routed_by
from routesparse.engine.seeds import stable_seed

DOMAINS = ("prose", "code", "dialog")


class Example(NamedTuple):
    """One layer of one window: sampled queries float16 [H, R, D], keys [Hkv, n, D], rows int64 [R], target [R, n]."""

    q: torch.Tensor
    k: torch.Tensor
    rows: torch.Tensor
    target: torch.Tensor


class Recorder:
    """A rule under which every layer runs dense while examples of its attention are kept, by layer."""

    def __init__(self, rows: int, seed: int) -> None:
        self.rows, self.seed = rows, seed
        self.examples: dict[int, list[Example]] = {}

    def __call__(self, view: View) -> Selection | None:
        mine = self.examples.setdefault(view.layer, [])
        generator = torch.Generator().manual_seed(stable_seed("indexer", self.seed, view.layer, len(mine)))
        rows = torch.randperm(view.tokens, generator=generator)[: self.rows].sort().values.to(view.device)
        target = view.row_softmax(rows)[0].mean(0)
        kept = (view.inputs.q[0, :, rows], view.inputs.k[0], rows, target)
        mine.append(Example(*(x.half() if x.is_floating_point() else x for x in kept)))
        return None


def main(argv: list[str] | None = None) -> None:
    """Record, train, measure, write."""
    parser = study.parser(__doc__)
    parser.set_defaults(out=paths.DATA / "baselines" / "indexer_demo.safetensors")
    parser.add_argument("--tokens", type=int, default=2_048, help="of a window")
    parser.add_argument("--windows", type=int, default=12, help="of the train split, per domain")
    parser.add_argument(
        "--held-out", type=int, default=2, help="windows of the calibration split, per domain"
    )
    parser.add_argument("--rows", type=int, default=192, help="sampled rows of a layer and window")
    parser.add_argument("--heads", type=int, default=4, help="indexer heads, a divisor of the query heads")
    parser.add_argument("--dimensions", type=int, default=16, help="of an indexer head")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--rate", type=float, default=3e-3, help="Adam's, falling to 0 as a cosine")
    parser.add_argument("--keys", type=int, default=256, help="of a row, for the measured mass")
    arguments = parser.parse_args(argv)
    loaded = load_model(arguments.model)
    trained, held_out = (
        recorded(loaded, arguments, split, count)
        for split, count in (("train", arguments.windows), ("calibration", arguments.held_out))
    )
    layers, masses = [], []
    for layer, examples in sorted(trained.items()):
        layers.append(fitted(examples, arguments, layer))
        masses.append(held_masses(layers[-1], held_out[layer], arguments.keys))
        study.note(f"layer {layer}: " + ", ".join(f"{k} {v:.3f}" for k, v in masses[-1].items()))
    about = {
        **study.header(loaded, arguments),
        "split": "train",
        "held_out_mass": masses,
        "keys": arguments.keys,
    }
    save(arguments, layers, about)


def recorded(
    loaded: LoadedModel, arguments: argparse.Namespace, split: str, windows: int
) -> dict[int, list[Example]]:
    """Examples of one split's windows, by layer."""
    recorder = Recorder(arguments.rows, arguments.seed)
    for ids in window_ids(loaded, arguments, split, windows):
        with torch.no_grad(), routed_by(loaded.model, RuleRouter(recorder)):
            loaded.model.model(torch.tensor([ids], device=loaded.device), use_cache=False)
        study.note(f"{split}: {len(recorder.examples[0])} windows")
    return recorder.examples


def window_ids(
    loaded: LoadedModel, arguments: argparse.Namespace, split: str, windows: int
) -> Iterator[list[int]]:
    """Token ids of so many windows of a split, from every domain."""
    for domain in DOMAINS:
        documents = read_documents(arguments.data / domain / split, domain, loaded.tokenizer)
        tokens = arguments.tokens
        for window in cut(documents, windows, tokens, tokens, loaded.tokenizer, arguments.seed):
            yield list(window.token_ids)


def fitted(examples: list[Example], arguments: argparse.Namespace, layer: int) -> LayerIndexer:
    """One layer's indexer after ``--epochs`` passes over its examples, one step a window."""
    made = initial(
        examples[0], arguments.heads, arguments.dimensions, stable_seed("indexer", arguments.seed, layer)
    )
    parameters = [getattr(made, name).requires_grad_() for name in NAMES]
    optimiser = torch.optim.Adam(parameters, lr=arguments.rate)
    steps = arguments.epochs * len(examples)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    generator = torch.Generator().manual_seed(stable_seed("indexer order", arguments.seed, layer))
    for _ in range(arguments.epochs):
        for place in torch.randperm(len(examples), generator=generator).tolist():
            optimiser.zero_grad()
            divergence(made, examples[place]).backward()
            optimiser.step()
            schedule.step()
    return LayerIndexer(*(p.detach() for p in parameters))


def initial(example: Example, heads: int, dimensions: int, seed: int) -> LayerIndexer:
    """Random projections whose products are about 1; every head counts alike at first."""
    generator = torch.Generator().manual_seed(seed)
    wide, narrow = example.q.shape[0] * example.q.shape[2], example.k.shape[0] * example.k.shape[2]
    device, part = example.q.device, wide // heads

    def draw(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * (shape[-2] * dimensions**0.5) ** -0.5).to(device)

    return LayerIndexer(draw(heads, part, dimensions), draw(narrow, dimensions), draw(heads, part, 1)[..., 0])


def divergence(indexer: LayerIndexer, example: Example) -> torch.Tensor:
    """Mean KL(p | softmax I) over the example's rows, in nats."""
    target = example.target.float()
    return F.kl_div(log_shares(indexer, example), target, reduction="sum") / len(target)


def log_shares(indexer: LayerIndexer, example: Example) -> torch.Tensor:
    """log softmax of I over each row's past: float32 [R, n]; keys after the row hold the least float."""
    scores = indexer.scores(example.q, indexer.keys(example.k))
    future = torch.arange(scores.shape[-1], device=scores.device) > example.rows.view(-1, 1)
    return scores.masked_fill(future, torch.finfo(scores.dtype).min).log_softmax(-1)


def held_masses(indexer: LayerIndexer, examples: list[Example], keys: int) -> dict[str, float]:
    """Mean over rows past the first ``keys`` of the attention that so many keys hold, and the KL."""
    sums = {"indexer": 0.0, "exact": 0.0, "window": 0.0, "kl": 0.0}
    count = 0
    for example in examples:
        later = example.rows >= keys
        target = example.target.float()[later]
        distance = example.rows[later].view(-1, 1) - torch.arange(target.shape[-1], device=target.device)
        chosen = log_shares(indexer, example)[later].topk(keys, dim=-1).indices
        sums["indexer"] += float(target.gather(-1, chosen).sum())
        sums["exact"] += float(target.topk(keys, dim=-1).values.sum())
        sums["window"] += float((target * ((distance >= 0) & (distance < keys))).sum())
        sums["kl"] += float(divergence(indexer, example)) * int(later.sum())
        count += int(later.sum())
    return {name: round(value / count, 4) for name, value in sums.items()}


def save(arguments: argparse.Namespace, layers: list[LayerIndexer], about: dict[str, object]) -> None:
    """float16 [L, ...] by name, and ``about`` as JSON in the file's metadata."""
    from safetensors.torch import save_file

    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    stacked = {name: torch.stack([getattr(x, name) for x in layers]).half().cpu() for name in NAMES}
    save_file(stacked, arguments.out, metadata={"about": json.dumps(about)})


if __name__ == "__main__":
    study.run(main)
