"""The predicted loss of one analysed prompt: its replay (runtime/replay.py), scaled by the model's fit.

    loss = factor * mean over replayed rows of KL(replay || run)         nats a token

A model without a fit has a stated factor and no bound (calibration/fitted.py). Where a dense prefill runs too, its KL
to the run at the same rows is the truth beside it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from routesparse.engine.calibration import fitted
from routesparse.engine.calibration.fitted import Fitted
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import is_out_of_memory
from routesparse.engine.models.load import LoadedModel
from routesparse.engine.rows import LossRow, RunRecord
from routesparse.engine.runtime.attention_router import AttentionRouter
from routesparse.engine.runtime.replay import (
    HiddenRows,
    Keeping,
    LayerKeys,
    figures_of,
    hidden_at,
    kl_of,
    replayed,
    rows_of,
)
from routesparse.engine.seeds import stable_seed

HEAD_ROWS = 64  # of the replayed ones, where every head's own error is measured
# Of the free memory: keys and values beyond it are not held for a replay.
MEMORY_SHARE = 0.25
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Seen:
    """What a replay saw. rows int64 [S, STRETCH]; by stretch, nats a token; lost [L, H]: see Keeping."""

    rows: np.ndarray
    replayed: np.ndarray
    dense: np.ndarray | None
    lost: np.ndarray
    entropy: float  # of the replay: means over its rows
    surprise: float
    ms: float


class Replay:
    """Replays one prompt of one model; every method does nothing where the prompt is too short, or memory too small."""

    def __init__(self, loaded: LoadedModel, inner: AttentionRouter, tokens: int, salt: str) -> None:
        self._loaded = loaded
        fits = loaded.cache_bytes(tokens) <= MEMORY_SHARE * loaded.free_bytes()
        self._stretches = rows_of(tokens - 1, stable_seed("replay", salt)) if fits else None
        self.router: AttentionRouter = inner
        self._keeping: Keeping | None = None
        if self._stretches is not None:
            self._at = torch.from_numpy(self._stretches.flatten()).to(loaded.model.device)
            every = max(1, len(self._at) // HEAD_ROWS)
            self.router = self._keeping = Keeping(inner, self._at[::every])

    @contextmanager
    def hidden(self) -> Iterator[HiddenRows | None]:
        """The prefill inside the block leaves its rows' last hidden states, if they are wanted."""
        with nullcontext() if self._stretches is None else hidden_at(self._loaded.model, self._at) as found:
            yield found

    def of(self, ids: torch.Tensor, run: HiddenRows | None) -> Seen | None:
        """Replay the prompt of token ids int64 [1, n]; what was held of it is given back.

        None, with a warning, where a GPU's memory does not suffice: the run itself is done.
        """
        if self._keeping is None or run is None or run.hidden is None or self._stretches is None:
            return None
        try:
            return self._seen(ids, run.hidden, self._keeping, self._stretches)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            warnings.warn("no memory is left for a replay, so this run has no predicted loss", stacklevel=2)
            return None
        finally:
            self._keeping.kept.clear()

    def _seen(self, ids: torch.Tensor, hidden: torch.Tensor, keeping: Keeping, stretches: np.ndarray) -> Seen:
        model, kept = self._loaded.model, keeping.kept
        self._wait()
        started = time.perf_counter()
        exact = replayed(model, {"input_ids": ids[:, self._at]}, kept, self._at)
        kl, entropy, surprise = figures_of(model, exact, hidden, ids[0, self._at + 1])
        found, told = self._by_stretch(kl), (float(entropy.mean()), float(surprise.mean()))
        lost = torch.stack([by_head.cpu() for _, by_head in sorted(keeping.lost().items())])
        ms = 1e3 * (time.perf_counter() - started)
        return Seen(stretches, found, None, lost.double().numpy(), *told, ms)

    def beside(self, seen: Seen | None, run: HiddenRows | None, dense: HiddenRows | None) -> Seen | None:
        """The truth of a dense prefill added."""
        if seen is None or run is None or dense is None or run.hidden is None or dense.hidden is None:
            return seen
        return replace(seen, dense=self._by_stretch(kl_of(self._loaded.model, dense.hidden, run.hidden)))

    def _by_stretch(self, rows: torch.Tensor) -> np.ndarray:
        assert self._stretches is not None
        by_row: np.ndarray = rows.double().cpu().numpy()
        return by_row.reshape(self._stretches.shape).mean(1)

    def _wait(self) -> None:
        if self._loaded.on_gpu:
            torch.cuda.synchronize(self._loaded.model.device)


def of_anybody(
    loaded: LoadedModel,
    ids: torch.Tensor,
    kept: dict[int, LayerKeys],
    run: HiddenRows,
    config: RouterConfig | None,
) -> dict[str, Any]:
    """The predicted loss of a prefill by any attention: loss_nats, loss_bound and loss_fit as of a run, replayed_rows.

    kept, run: of the prefill of token ids int64 [1, n]. config: of our own router, where it was that.
    """
    assert run.hidden is not None
    exact = replayed(loaded.model, {"input_ids": ids[:, run.rows]}, kept, run.rows)
    columns = figures_of(loaded.model, exact, run.hidden, ids[0, run.rows + 1])
    mean, entropy, surprise = (float(column.mean()) for column in columns)
    fit, found, kind, bound = fitted.of_model(loaded.revision), fitted.unfitted(mean), None, None
    if fit is not None:
        kind = fit.nearest(entropy, surprise)
        found = fit.predicted(mean, kind, CONFIDENCE)
        bound = found.bound if config is not None and fit.speaks_of(config) else None
    return {"loss_nats": found.nats, "loss_bound": bound, "loss_fit": kind, "replayed_rows": len(run.rows)}


def with_loss(
    record: RunRecord, seen: Seen | None, fit: Fitted | None, target: float | None, config: RouterConfig
) -> RunRecord:
    """The record of a run of this configuration with its predicted loss, and each head's part of it."""
    run = replace(record.run, loss_target=target)
    if seen is None or not run.routed:
        return replace(record, run=run)
    mean = float(seen.replayed.mean())
    found, kind = fitted.unfitted(mean), None
    if fit is not None:
        kind = fit.kind_of(run.domain)
        if kind == fitted.MIXED:  # nobody said what the text is
            kind = fit.nearest(seen.entropy, seen.surprise)
        found = fit.predicted(mean, kind, run.confidence)
    alarm = None if fit is None or kind is None else fit.is_unlike(seen.entropy, seen.surprise, kind)
    figures: dict[str, Any] = {
        "loss_alarm": alarm,
        "loss_nats": found.nats,
        "loss_bound": found.bound if fit is not None and fit.speaks_of(config) else None,
        "loss_fit": kind,
        "loss_ms": seen.ms,
    }
    shares = None if fit is None else fit.head_shares(seen.lost)
    choices = record.choices
    if shares is not None:
        parts = found.nats * shares
        choices = tuple(
            replace(one, loss_nats=float(parts[one.layer, one.head]) * one.tokens / run.tokens)
            for one in choices
        )
    losses = tuple(
        LossRow(
            run_id=run.run_id,
            batch_index=0,
            position=int(rows[0]),
            tokens=len(rows),
            replayed=float(seen.replayed[place]),
            dense=None if seen.dense is None else float(seen.dense[place]),
        )
        for place, rows in enumerate(seen.rows)
    )
    return replace(record, run=replace(run, **figures), choices=choices, losses=losses)
