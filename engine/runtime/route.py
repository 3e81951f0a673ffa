"""``with route(model, config) as trace:``, the public way to route a model's prefill.

Importing this module also says who serves a model that is set to "routesparse" without ``route``.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from routesparse.engine.config import RouterConfig, default_segment
from routesparse.engine.models.load import revision_of_model
from routesparse.engine.profiles.measure import NamedProfile
from routesparse.engine.runtime.quality import choose
from routesparse.engine.runtime.session import RoutingSession
from routesparse.engine.runtime.transformers import check_supported, routed_by, serve_by_default

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from routesparse.engine.calibration.artifact import Calibration
    from routesparse.engine.calibration.tuned import TunedPrice
    from routesparse.engine.method.latency import LatencyProfile
    from routesparse.engine.record.trace import Trace


@contextmanager
def route(
    model: PreTrainedModel,
    config: RouterConfig | None = None,
    *,
    calibration: Calibration | TunedPrice | str | None = None,
    profile: LatencyProfile | str = "auto",
    salt: str | None = None,
) -> Iterator[Trace]:
    """Route the prefill of a supported transformers model inside the block; decode stays dense.

    calibration: a bundled name ("prose"), a path, a loaded one, or None for the in-prompt certificate alone. A tuned
    price ("prose-kl") sets the configuration's price, and the record names it.
    profile: "auto" takes the latency profile of this device or measures a quick one.
    salt: with the configuration's seed it places the random rows. None: every block has a salt of its own, so that an
    unlucky draw does not recur on every prompt; pass the same text (``trace.salt``) to draw the same rows again.
    Yields the trace (decisions, timings, to_bundle). Leaving the block restores the model, after errors too.
    Errors: UnsupportedModelError, ConfigError, CalibrationError, ProfileError, and ModelError where a calibration
    is given and the model's files are not known.
    """
    check_supported(model)
    if config is None:
        config = default_config(on_gpu=next(model.parameters()).is_cuda)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    given = None if isinstance(profile, str) else profile
    chosen = choose(config, calibration, lambda: revision_of_model(model), dtype, given)
    session = RoutingSession(
        chosen.config,
        chosen.calibration,
        profile=NamedProfile(profile) if isinstance(profile, str) else profile,
        salt=fresh_salt() if salt is None else salt,
        tuned_price=chosen.tuned_price,
    )
    with routed_by(model, session):
        yield session.trace


def default_config(on_gpu: bool) -> RouterConfig:
    """What routes a model where nobody passes a configuration."""
    return RouterConfig(segment_tokens=default_segment(on_gpu))


def fresh_salt() -> str:
    """Sixteen hex digits that no other session has."""
    return secrets.token_hex(8)


serve_by_default(
    lambda on_gpu: RoutingSession(default_config(on_gpu), profile=NamedProfile(), salt=fresh_salt())
)
