"""``with route(model, config) as trace:``, the public way to route a model's prefill."""

from __future__ import annotations

import dataclasses
import secrets
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from routesparse.engine.config import RouterConfig, default_config
from routesparse.engine.device.graphs import Graphs
from routesparse.engine.errors import ConfigError, ModelError, is_out_of_memory
from routesparse.engine.models.load import model_name, revision_of_model
from routesparse.engine.profiles.measure import NamedProfile
from routesparse.engine.profiles.shape import AttentionShape
from routesparse.engine.record.passes import RunInfo
from routesparse.engine.runtime.quality import by_loss, choose
from routesparse.engine.runtime.session import RankSession, RoutingSession
from routesparse.engine.runtime.tensor_parallel import Ranks, caught, ranks_in, ranks_of
from routesparse.engine.runtime.transformers import check_supported, routed_by, tell_of_replaced

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup
    from transformers import PreTrainedModel

    from routesparse.engine.calibration.artifact import Calibration
    from routesparse.engine.calibration.tuned import TunedPrice
    from routesparse.engine.method.latency import LatencyProfile
    from routesparse.engine.record.trace import Trace


# What earlier blocks captured, by model, with the device that it was on.
_captured: WeakKeyDictionary[PreTrainedModel, tuple[torch.device, Graphs]] = WeakKeyDictionary()


@contextmanager
def route(
    model: PreTrainedModel,
    config: RouterConfig | None = None,
    *,
    loss: float | None = None,
    calibration: Calibration | TunedPrice | str | None = None,
    profile: LatencyProfile | str = "auto",
    salt: str | None = None,
    group: ProcessGroup | None = None,
    name: str = RunInfo.prompt_name,
    **settings: Any,
) -> Iterator[Trace]:
    """Route the prefill of a supported transformers model inside the block; decode stays dense.

    config, or its fields by name: ``route(model, price=1.0)``. By name a segment has the length that suits the model's
    device. A RouterConfig does not know it: its default is a CPU's, and a GPU then decides several times a layer.
    loss: nats a token to aim at in the mean, in place of a price: by the model's fit, with its head floors.
    calibration: a bundled name ("prose"), a path, a loaded one, or None for the in-prompt certificate alone. A tuned
    price ("prose-kl") sets the configuration's price, and the record names it.
    profile: "auto" takes the latency profile of this device or measures a quick one.
    salt: with the configuration's seed it places the random rows. None: every block has a salt of its own, so that an
    unlucky draw does not recur on every prompt; pass the same text (``trace.salt``) to draw the same rows again.
    group: the processes among which the heads of each layer are split, where transformers does not know them (Ulysses).
    name: what records call the prompt; the model's name and revision they have by themselves.
    Yields the trace (decisions, timings, to_frame, plot, show, to_bundle). Leaving the block restores the model, after
    errors too. What a GPU captured stays for the model's next block (graphs.KEPT_SHARE of its memory, or one graph),
    until the model is deleted, routed on another device, or out of memory.
    An attention function of your own that the model was set to does not run inside: a UserWarning names it.
    Errors: UnsupportedModelError, ConfigError, CalibrationError, ProfileError, and ModelError where a loss or a
    calibration is given and the model's files are not known.
    """
    check_supported(model)
    tell_of_replaced(model)
    own_segment = config is not None or "segment_tokens" in settings
    config = asked_config(model, config, settings)
    if loss is not None:
        revision = partial(revision_of_model, model)
        config, aim = by_loss(loss, config, calibration, revision, model_name(model), own_segment)
        calibration = aim.found
        if aim.found is None:
            warnings.warn(aim.says, stacklevel=3)
    ranks = ranks_of(model) if group is None else ranks_in(group, model)
    if ranks is None:
        session = _session(model, config, calibration, profile, fresh_salt() if salt is None else salt)
        session.trace.info = _about(model, name)
        with _forgotten_without_memory(model), routed_by(model, session):
            yield session.trace
        return
    with _forgotten_without_memory(model), ranks.ended_together():
        session = _rank_session(model, config, calibration, profile, salt, ranks)
        session.trace.info = _about(model, name)
        with routed_by(model, session):
            yield session.trace


def _about(model: PreTrainedModel, name: str) -> RunInfo:
    try:
        revision = revision_of_model(model)
    except ModelError:  # made in memory
        revision = ""
    return RunInfo(model=model_name(model), model_revision=revision, prompt_name=name)


def _graphs_of(model: PreTrainedModel) -> Graphs:
    """What earlier blocks captured on the device that the model is on."""
    device = next(model.parameters()).device
    if model not in _captured or _captured[model][0] != device:
        _captured[model] = device, Graphs()
    return _captured[model][1]


@contextmanager
def _forgotten_without_memory(model: PreTrainedModel) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            _captured.pop(model, None)
        raise


def _rank_session(
    model: PreTrainedModel,
    config: RouterConfig,
    calibration: Calibration | TunedPrice | str | None,
    profile: LatencyProfile | str,
    salt: str | None,
    ranks: Ranks,
) -> RoutingSession:
    """``route``'s session in one of several processes: salt and latency profile are the first one's."""
    weight = next(model.parameters())
    if isinstance(profile, str):
        named, sizes = NamedProfile(profile), model.config
        head_dim = getattr(sizes, "head_dim", None) or sizes.hidden_size // sizes.num_attention_heads
        heads, kv_heads = sizes.num_attention_heads, sizes.num_key_value_heads or sizes.num_attention_heads
        own = (heads // ranks.size, kv_heads // ranks.size)
        shape = AttentionShape(weight.device, weight.dtype, head_dim, *own)
        profile = ranks.from_first(lambda: named.on(shape, config))
    common = ranks.from_first(fresh_salt) if salt is None else salt
    kind = partial(RankSession, ranks=ranks)
    # Each process reads its own files: one may lack what the others have.
    session, error = caught(lambda: _session(model, config, calibration, profile, common, kind))
    ranks.agree(error)
    assert session is not None
    return session


def _session(
    model: PreTrainedModel,
    config: RouterConfig,
    calibration: Calibration | TunedPrice | str | None,
    profile: LatencyProfile | str,
    salt: str,
    kind: Callable[..., RoutingSession] = RoutingSession,
) -> RoutingSession:
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    given = None if isinstance(profile, str) else profile
    chosen = choose(config, calibration, lambda: revision_of_model(model), dtype, given)
    return kind(
        chosen.config,
        chosen.calibration,
        profile=NamedProfile(profile) if isinstance(profile, str) else profile,
        tuned_price=chosen.tuned_price,
        salt=salt,
        graphs=_graphs_of(model),
    )


def asked_config(
    model: PreTrainedModel, config: RouterConfig | None, settings: dict[str, Any]
) -> RouterConfig:
    """The configuration that was passed, or the device's own with these fields. Errors: ConfigError."""
    known = [field.name for field in dataclasses.fields(RouterConfig)]
    if unknown := sorted(set(settings) - set(known)):
        raise ConfigError(
            f"unknown arguments {', '.join(unknown)}; pass config, calibration, profile, salt or a setting: "
            + ", ".join(known)
        )
    if config is None:
        return default_config(next(model.parameters()).is_cuda, **settings)
    if settings:
        raise ConfigError(
            f"a configuration and settings by name ({', '.join(settings)}); pass one of the two, or "
            "dataclasses.replace(config, ...)"
        )
    return config


def fresh_salt() -> str:
    """Sixteen hex digits that no other session has."""
    return secrets.token_hex(8)
