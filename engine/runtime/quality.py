"""What sets the price of a run but the user: ``calibration=`` names a tuned price, ``loss=`` goes by the model's fit.

``calibration=`` may name a conformal calibration, too, which adds a certificate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from routesparse.engine.calibration import fitted, tuned
from routesparse.engine.calibration.artifact import Calibration, load_calibration
from routesparse.engine.calibration.choose import Aim, aimed
from routesparse.engine.calibration.tuned import TunedPrice
from routesparse.engine.config import Price, RouterConfig, argument
from routesparse.engine.errors import ConfigError

if TYPE_CHECKING:
    from routesparse.engine.method.latency import LatencyProfile


def by_loss(
    loss: float,
    config: RouterConfig,
    calibration: Calibration | TunedPrice | str | None,
    revision: Callable[[], str],
    name: str,
    own_segment: bool,
) -> tuple[RouterConfig, Aim]:
    """What the model's fit has for a mean loss on all its kinds of text, and the configuration by it.

    calibration: what was asked for beside the loss. own_segment: see ``Aim.applied``.
    Errors: ConfigError, CalibrationError without a fit, and ModelError of revision.
    """
    if calibration is not None or config.policy != "priced" or config.price != RouterConfig.price:
        raise ConfigError("loss sets the price; leave calibration, price and another policy out")
    argument(Price, loss, "loss")
    fit = fitted.needed(revision(), name, loss)
    aim = aimed(fit, None, loss)
    return aim.applied(fit.floored(config), own_segment), aim


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
