"""A loss target kept inside vLLM: of routed prompts the loss is predicted, and the price of later ones follows it.

ROUTESPARSE_VLLM_KEEP switches it on beside ROUTESPARSE_VLLM_LOSS. calibration/keeping.py decides, its log lies in the
home. A request with a loss of its own has a prediction too, and moves nothing.
"""

from __future__ import annotations

import datetime
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from routesparse.engine.calibration import keeping_log
from routesparse.engine.calibration.fitted import DEFAULT_LOSS, LEAST_TOKENS, Fitted
from routesparse.engine.calibration.keeping import Keeper, Replay
from routesparse.engine.errors import is_out_of_memory
from routesparse.engine.prompts.text import clean_label
from routesparse.engine.rows import RunRecord
from routesparse.engine.runtime.loss import Seen, with_loss
from routesparse.engine.runtime.quality import Chosen
from routesparse.engine.runtime.vllm.replay import KeptRows, Replayer
from routesparse.engine.runtime.vllm.settings import ServingSettings
from routesparse.engine.seeds import stable_seed

log = logging.getLogger("vllm.routesparse")  # as requests.log


class Keeping:
    """One engine's target."""

    def __init__(
        self, settings: ServingSettings, fit: Fitted, chosen: Chosen, replayer: Replayer, name: str
    ) -> None:
        """chosen: by the fit, the start. Errors: CalibrationError for bounds or a damaged log, OSError."""
        target = settings.loss or DEFAULT_LOSS
        self._settings, self._fit, self._replayer = settings, fit, replayer
        self._log, self._begun = keeping_log.log_of(name, target), 0
        start = keeping_log.resumed(self._log, fit.model_revision, target) or chosen.config.price
        self.keeper = Keeper(fit, target, settings.keep_prices or (fit.prices[0], fit.prices[-1]), start)

    def applied(self, chosen: Chosen) -> Chosen:
        """What the next prompt is routed with."""
        return replace(chosen, config=replace(chosen.config, price=self.keeper.state.price), tuned_price=None)

    def begun(self, prompt: Sequence[int], salt: str, moves: bool) -> KeptRows | None:
        """Of a prompt that begins; None where it is not its turn, or too short to be judged.

        moves: the price; one that has a target of its own takes no other's turn, and is not measured.
        """
        if len(prompt) < LEAST_TOKENS:
            return None
        turn, skipped = divmod(self._begun, self._settings.keep)
        self._begun += int(moves)
        if skipped:
            return None
        dense = self._settings.keep_dense
        whole = moves and dense > 0 and (turn + 1) % dense == 0
        return KeptRows(np.asarray(prompt, np.int64), stable_seed("replay", salt), whole)

    def ended(
        self, request: str, kept: KeptRows, table: torch.Tensor, price: float, target: float | None
    ) -> Seen | None:
        """Replay a prompt that was routed at a price, and move the price unless the request has a target of its own.

        None where vLLM had the keys of too much of it or ran a kept row in a graph, and, with a warning, where a replay
        fails for memory or NaN: the request itself is served.
        """
        if kept.stretches is None or not kept.is_complete:
            return None
        started = time.perf_counter()
        try:
            found = self._replayer.figures(kept, kept.stretches.flatten(), table)
            whole = self._replayer.figures(kept, kept.rows, table) if kept.whole and target is None else None
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            log.warning("RouteSparse: no memory is left to predict the loss of request %s", request)
            return None
        kl, entropy, surprise = (one.double().cpu().numpy() for one in found)
        replay = float(kl.mean()), float(entropy.mean()), float(surprise.mean())
        measured = None if whole is None else float(whole[0].double().mean())
        if not math.isfinite(sum(replay) + (measured or 0.0)):
            log.warning(
                "RouteSparse: the replay of request %s has NaN, so its loss is not predicted", request
            )
            return None
        ms = 1e3 * (time.perf_counter() - started)
        by_stretch, no_heads = kl.reshape(kept.stretches.shape).mean(1), np.empty((0, 0))
        seen = Seen(kept.stretches, by_stretch, None, no_heads, *replay[1:], ms)
        kept.predicted = self.keeper.predicts(price, replay)[-1]
        if target is None:
            self._move(clean_label(request), price, replay, measured)
        return seen

    def recorded(
        self, record: RunRecord, seen: Seen | None, chosen: Chosen, target: float | None
    ) -> RunRecord:
        """A record with its predicted loss. target: the request's own."""
        return with_loss(record, seen, self._fit, target or self.keeper.target, chosen.config)

    def _move(self, request: str, price: float, replay: Replay, measured: float | None) -> None:
        before, now = self.keeper.state.alarms, datetime.datetime.now(datetime.UTC)
        kept = self.keeper.seen(now.isoformat(timespec="seconds"), request, price, replay, measured)
        state = kept.state
        log.info(
            "RouteSparse predicts a loss of %.2g for request %s at price %.3g; mean %.2g, target %g, next price %.3g",
            *(kept.predicted, request, price, state.mean, kept.target, state.price),
        )
        for alarm in set(state.alarms) - set(before):
            told = {
                "bounded": f"price stays at its bound {state.price:.3g}",
                "beyond": f"mean loss is {state.mean:.2g}",
            }
            log.warning("RouteSparse does not keep the target %g: the %s", kept.target, told[alarm])
        try:
            keeping_log.append(self._log, kept)
        except OSError as error:
            log.error("RouteSparse could not write %s: %s", self._log.name, error)
