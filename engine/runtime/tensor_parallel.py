"""Heads in several processes: transformers' tensor parallelism and DeepSpeed's Ulysses. Each routes its own heads.

A process of rank r sees query heads r H/R to (r+1) H/R of each layer and solves for them under the same T_l. Salt and
latency profile come from the first process, and rows are drawn for all heads: a head's decision is the one that
it would get in a single process, but for the layer's certificate, which each process has of its own heads.

Between two layers the processes wait for each other, so an error in one must not keep it from the rest of the forward
pass: it goes on with zeros, and when the pass ends all processes compare notes and raise together. An error from
elsewhere that leaves the block ends the process group, so that no process waits for one that is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from torch import distributed

from routesparse.engine.errors import RankError, RouteSparseError, UnsupportedModelError
from routesparse.engine.record.ranks import merged
from routesparse.engine.record.to_rows import PROBE_BYTES, drift_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from routesparse.engine.record.passes import RunInfo
    from routesparse.engine.record.trace import Trace
    from routesparse.engine.rows import RunRecord

T = TypeVar("T")
_FAILURE = "routesparse/failure"  # where a process that leaves the group says why


@dataclass(frozen=True)
class Ranks:
    """The processes that share a model's heads, seen from one of them."""

    group: Any  # torch's ProcessGroup
    rank: int
    size: int
    heads: int  # of the whole model

    @property
    def first_head(self) -> int:
        """The model's first query head that this process serves."""
        return self.rank * (self.heads // self.size)

    def check_share(self, heads: int) -> None:
        """Errors: UnsupportedModelError where attention has other heads than this process's share."""
        if heads != self.heads // self.size:
            raise UnsupportedModelError(
                f"each of {self.size} processes sees {heads} of {self.heads} heads, so this model's plan does not "
                "split its attention; load it without a tp_plan"
            )

    def from_first(self, make: Callable[[], T]) -> T:
        """What the first process makes, in all of them. Errors: RankError, in all of them."""
        made, error = caught(make) if self.rank == 0 else (None, None)
        self.agree(error)
        found: list[Any] = [made]
        distributed.broadcast_object_list(found, group=self.group, group_src=0)
        return cast(T, found[0])

    def agree(self, error: Exception | None) -> None:
        """Raise in all processes where one of them met an error: RankError, or where all did, each its own."""
        told = self._told(None if error is None else f"{type(error).__name__}: {error}")
        failed = [rank for rank, message in enumerate(told) if message is not None]
        if not failed:
            return
        if error is not None and len(failed) == self.size:
            raise error
        raise RankError(f"rank {failed[0]} of {self.size} failed: {told[failed[0]]}") from error

    def gathered(self, value: T) -> list[T]:
        """Every process's value, by rank, in the first one; elsewhere nothing."""
        found: list[Any] | None = [None] * self.size if self.rank == 0 else None
        distributed.gather_object(value, found, group=self.group, group_dst=0)
        return found or []

    @contextmanager
    def ended_together(self) -> Iterator[None]:
        """An error that no other process knows of ends the group: what they wait for would never come.

        Errors: RankError in the other processes, with the first one's message.
        """
        try:
            yield
        except RouteSparseError:
            raise  # the processes have the same input, or have agreed on it
        except Exception as error:
            store = distributed.distributed_c10d._get_default_store()
            told = isinstance(error, RuntimeError) and store.check([_FAILURE])
            if not told:
                met = f"{type(error).__name__}: {error}"
                store.set(_FAILURE, f"rank {self.rank} of {self.size} failed: {met}")
            distributed.destroy_process_group()
            if told:
                raise RankError(store.get(_FAILURE).decode()) from error
            raise

    def _told(self, message: str | None) -> list[str | None]:
        told: list[str | None] = [None] * self.size
        distributed.all_gather_object(told, message, group=self.group)
        return told


def ranks_of(model: PreTrainedModel) -> Ranks | None:
    """The processes that this model is spread over; None where it is whole.

    Errors: UnsupportedModelError where its heads can't be split evenly, and for other kinds of parallelism.
    """
    mesh = getattr(model, "_device_mesh", None)
    if mesh is None or mesh.size() == 1:
        return None
    # Before transformers 5.18 a mesh of one dimension has no names.
    if mesh.size() != (getattr(model, "_tp_size", None) or 1):
        shape = dict(zip(mesh.mesh_dim_names or range(mesh.ndim), mesh.shape, strict=True))
        raise UnsupportedModelError(
            f"this model is spread over a mesh of shape {shape}; only tensor parallelism is routed"
        )
    return ranks_in((mesh if mesh.ndim == 1 else mesh["tp"]).get_group(), model)


def ranks_in(group: Any, model: PreTrainedModel) -> Ranks:
    """The processes of a torch group among which each layer's heads are split evenly, in order.

    Errors: UnsupportedModelError where they can't be.
    """
    config, size = model.config, distributed.get_world_size(group)
    heads, kv_heads = config.num_attention_heads, getattr(config, "num_key_value_heads", None)
    for what, count in (("attention heads", heads), ("KV heads", kv_heads or heads)):
        if count % size:
            raise UnsupportedModelError(
                f"{count} {what} can't be split over {size} processes; start as many as divide {count}"
            )
    return Ranks(group, distributed.get_rank(group), size, heads)


def record_of_all_ranks(trace: Trace, info: RunInfo | None = None) -> RunRecord | None:
    """The last prompt as records of all heads: in the first process; None in the others. Every process calls it.

    Errors: as Trace.own_record, and RankError where that fails in one process alone.
    """
    ranks = trace.share
    if not isinstance(ranks, Ranks):
        return trace.record(info)
    info = info or trace.info
    share = replace(info, probe_bytes=(info.probe_bytes or PROBE_BYTES) // ranks.size)
    record, error = caught(lambda: trace.own_record(share))
    ranks.agree(error)
    records = ranks.gathered(record)
    if not records:
        return None
    one = merged([part for part in records if part is not None])
    drift = drift_of(trace.settings, trace.prompts[-1], one.choices)
    return replace(one, run=replace(one.run, **drift))


def caught(make: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """What it makes, or the error that it raised: whoever asks must not leave the others waiting."""
    try:
        return make(), None
    except Exception as error:  # noqa: BLE001
        return None, error
