"""What ``calibration=`` may name: a conformal calibration, which adds a certificate, or a tuned price."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from routesparse.engine.calibration import tuned
from routesparse.engine.calibration.artifact import Calibration, load_calibration
from routesparse.engine.calibration.tuned import TunedPrice
from routesparse.engine.config import RouterConfig

if TYPE_CHECKING:
    from routesparse.engine.method.latency import LatencyProfile


@dataclass(frozen=True)
class Chosen:
    """What a session is made with."""

    config: RouterConfig
    calibration: Calibration | None = None
    tuned_price: str | None = None  # its name


def choose(
    config: RouterConfig,
    calibration: Calibration | TunedPrice | str | None,
    revision: Callable[[], str],
    dtype: str,
    profile: LatencyProfile | None,
) -> Chosen:
    """Load what is named and hold it against the model; revision() is asked for only where it is needed.

    dtype: of the weights, such as "float32". profile: None where it is not measured yet.
    Errors: CalibrationError, ConfigError, and ModelError of revision.
    """
    found = tuned.find(calibration) if isinstance(calibration, str) else calibration
    if isinstance(found, TunedPrice):
        by_hand = None if config.price == RouterConfig.price else config.price
        config = found.applied(config, by_hand)
        found.check(revision(), config)
        return Chosen(config, tuned_price=found.name)
    loaded = load_calibration(calibration) if isinstance(calibration, str) else found
    if loaded is not None:
        loaded.check(revision(), config, dtype, profile)
    return Chosen(config, loaded)
