"""Everything that a routing session saw, and its last prompt as records or as a bundle."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from routesparse.engine.errors import NumericsError, PromptError
from routesparse.engine.export.notebook import Shown
from routesparse.engine.record.passes import PromptTrace, RunInfo, RunSettings, timings_of
from routesparse.engine.record.ranks import HeadShare, shifted
from routesparse.engine.record.to_rows import record_prompt
from routesparse.engine.rows import HeadChoiceRow, RunRecord
from routesparse.engine.store.bundle import write_bundle


@dataclass(repr=False)
class Trace(Shown):
    """Everything that a routing session saw; ``with route(model) as trace`` yields it."""

    settings: RunSettings
    prompts: list[PromptTrace] = field(default_factory=list)
    info: RunInfo = field(default_factory=RunInfo)
    # The last prefill continued keys of no prompt that is known here: it ran dense, and is in no prompt.
    continues_unknown: bool = False
    # The last prefill has layers to come, or ended in an error outside of its attention.
    unfinished: bool = False
    # Which of the model's heads this process serves; None: all.
    share: HeadShare | None = None

    def __repr__(self) -> str:
        """One line, for which nothing is waited."""
        if not self.prompts or self.unfinished or self.continues_unknown:
            return "Trace: no routed prompt yet"
        return (
            f"Trace of {self.info.prompt_name}, {self.prompts[-1].tokens:,} tokens, by {self.info.model}: see "
            "to_frame(), plot(), show()"
        )

    @property
    def salt(self) -> str:
        """With the seed it places the random rows; ``route(salt=trace.salt)`` draws the same ones again."""
        return self.settings.salt

    def settle(self, wait: bool = True) -> None:
        """Ask whether the last prompt is finite. Errors: NumericsError, and that prompt is forgotten.

        wait: for all of it; else what a GPU is still at is not asked.
        """
        if not self.prompts:
            return
        try:
            self.prompts[-1].settle(wait)
        except NumericsError:
            self.prompts.pop()
            raise

    @property
    def decisions(self) -> tuple[HeadChoiceRow, ...]:
        """The choices of the last prompt, one per (batch, layer, head, segment), of the heads that are served here.

        Errors: PromptError, as of own_record.
        """
        self._check_last()
        return self.own_record().choices if self.prompts else ()

    @property
    def timings(self) -> dict[str, float]:
        """Measured milliseconds of the last prompt: probe, index, route and kernel of its routed layers, their sum.

        Errors: PromptError, as of record.
        """
        self._check_last()
        self.settle()
        return timings_of(self.prompts[-1].passes if self.prompts else [])

    def to_bundle(self, path: str | Path) -> Path:
        """Write the last prompt's bundle into folder ``path``; returns the bundle's folder."""
        return write_bundle(self.record(), Path(path))

    def record(self, info: RunInfo | None = None) -> RunRecord:
        """The last prompt as records.

        Errors: as own_record; PromptError where other processes serve some of the heads.
        """
        if self.share is not None:
            raise PromptError(
                f"this process serves some of the model's {self.share.heads} heads; "
                "call record_of_all_ranks(trace) in every process"
            )
        return self.own_record(info)

    def own_record(self, info: RunInfo | None = None) -> RunRecord:
        """The last prompt as records of the heads that are served here, numbered as in the whole model.

        Errors: ValueError before the first prompt; PromptError where the last prefill did not come to its end, or
        continued a cache that is not one of this block's prompts.
        """
        self._check_last()
        self.settle()
        if not self.prompts:
            raise ValueError("no prompt has been prefilled inside the route() block yet")
        record = record_prompt(self.settings, self.prompts[-1], info or self.info)
        return record if self.share is None else shifted(record, self.share.first_head)

    def _check_last(self) -> None:
        if self.unfinished:
            raise PromptError(
                "the last prefill did not come to its end: it left no record; prefill the prompt again inside the block"
            )
        if self.continues_unknown:
            raise PromptError(
                "the last prefill continued a cache that is none of this block's prompts (cropped inside one, or "
                "filled elsewhere): it ran dense and left no record; prefill the whole prompt inside the block"
            )
