"""A loss target kept inside vLLM: of routed prompts the loss is predicted, and the price of later ones follows it.

ROUTESPARSE_VLLM_KEEP switches it on beside ROUTESPARSE_VLLM_LOSS. calibration/keeping.py decides, its log lies in the
home. A request with a loss of its own has a prediction too, and moves nothing.
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from routesparse.engine.calibration import keeping_log
from routesparse.engine.calibration.fitted import Fitted
from routesparse.engine.calibration.keeping import Keeper, Replay
from routesparse.engine.errors import is_out_of_memory
from routesparse.engine.rows import RunRecord
from routesparse.engine.runtime.loss import Seen, with_loss
from routesparse.engine.runtime.quality import Chosen
from routesparse.engine.runtime.replay import STRETCH, rows_of
from routesparse.engine.runtime.vllm.replay import KeptRows, Replayer
from routesparse.engine.runtime.vllm.settings import Keep
from routesparse.engine.seeds import stable_seed

log = logging.getLogger("vllm.routesparse")  # as requests.log


@dataclass
class Prompt:
    """One prompt that will be replayed: stretches int64 [S, STRETCH] of it, or also all of it."""

    kept: KeptRows
    stretches: np.ndarray
    whole: bool


class Keeping:
    """One engine's target."""

    def __init__(
        self, keep: Keep, fit: Fitted, target: float, chosen: Chosen, replayer: Replayer, name: str
    ) -> None:
        """chosen: by the fit, the start. Errors: CalibrationError for bounds or a damaged log, OSError."""
        self._keep, self._fit, self._replayer = keep, fit, replayer
        self._log, self._begun = keeping_log.log_of(name, target), 0
        state = keeping_log.resumed(self._log, fit.model_revision, target)
        bounds = keep.prices or (fit.prices[0], fit.prices[-1])
        self.keeper = Keeper(fit, target, bounds, chosen.config.price, state)

    def applied(self, chosen: Chosen) -> Chosen:
        """What the next prompt is routed with."""
        return replace(chosen, config=replace(chosen.config, price=self.keeper.price), tuned_price=None)

    def begun(self, prompt: Sequence[int], salt: str) -> Prompt | None:
        """Of a prompt that begins; None where it is not its turn, or too short to be judged."""
        stretches = rows_of(len(prompt) - 1, stable_seed("replay", salt))
        if stretches is None:
            return None
        self._begun += 1
        if (self._begun - 1) % self._keep.every:
            return None
        whole = self._keep.dense_every > 0 and self._begun % self._keep.dense_every == 0
        rows = np.arange(len(prompt) - 1) if whole else stretches.flatten()
        return Prompt(KeptRows(np.asarray(prompt, np.int64), rows), stretches, whole)

    def ended(
        self, request: str, prompt: Prompt, table: torch.Tensor, price: float, target: float | None
    ) -> Seen | None:
        """Replay a prompt that was routed at a price, and move the price unless the request has a target of its own.

        None, with a warning, where memory does not suffice or vLLM had some rows' keys: the request itself is served.
        """
        started = time.perf_counter()
        try:
            found = self._replayer.figures(prompt.kept, prompt.stretches.flatten(), table)
            whole = self._replayer.figures(prompt.kept, prompt.kept.rows, table) if prompt.whole else None
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            log.warning("RouteSparse: no memory is left to predict the loss of request %s", request)
            return None
        if found is None:
            return None
        kl, entropy, surprise = (one.double().cpu().numpy() for one in found)
        by_stretch, ms = kl.reshape(-1, STRETCH).mean(1), 1e3 * (time.perf_counter() - started)
        told = float(entropy.mean()), float(surprise.mean())
        seen = Seen(prompt.stretches, by_stretch, None, np.empty((0, 0)), *told, ms)
        if target is None:
            measured = None if whole is None else float(whole[0].double().mean())
            self._move(request, price, Replay(float(kl.mean()), *told), measured)
        return seen

    def recorded(
        self, record: RunRecord, seen: Seen | None, chosen: Chosen, target: float | None
    ) -> RunRecord:
        """A record with its predicted loss. target: the request's own."""
        return with_loss(record, seen, self._fit, target or self.keeper.target, chosen.config)

    def _move(self, request: str, price: float, replay: Replay, measured: float | None) -> None:
        before, now = self.keeper.state.alarms, datetime.datetime.now(datetime.UTC)
        kept = self.keeper.seen(now.isoformat(timespec="seconds"), request, price, replay, measured)
        told = (request, kept.predicted, price, kept.state.mean, kept.target, kept.state.price)
        log.info(
            "RouteSparse predicts a loss of %.2g for request %s at price %.3g; mean %.2g, target %g, next price %.3g",
            *(told[1], told[0], *told[2:]),
        )
        for alarm in set(kept.state.alarms) - set(before):
            log.warning("RouteSparse: %s", self._says(alarm))
        try:
            keeping_log.append(self._log, kept)
        except OSError as error:
            log.error("RouteSparse could not write %s: %s", self._log.name, error)

    def _says(self, alarm: str) -> str:
        keeper = self.keeper
        if alarm == "bounded":
            return f"the price stays at its bound {keeper.price:.3g}: the target {keeper.target:g} would need another"
        return f"the mean loss {keeper.state.mean:.2g} stays beyond the target {keeper.target:g}"
