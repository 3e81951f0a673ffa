"""The entry point ``vllm.general_plugins``: registers the routed backends in the place of the stock ones."""

from __future__ import annotations

import copy
import functools
import hashlib
import os
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from routesparse.engine import shared_folder
from routesparse.engine.calibration import fitted
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import ConfigError, ModelError, StoreError, UnsupportedModelError
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.models.files import resolve
from routesparse.engine.models.load import revision_of_model
from routesparse.engine.profiles.measure import NamedProfile
from routesparse.engine.runtime.quality import Chosen, by_loss, choose
from routesparse.engine.runtime.vllm import backend, refusals, steps
from routesparse.engine.runtime.vllm.asked import Asked
from routesparse.engine.runtime.vllm.installed import Installed
from routesparse.engine.runtime.vllm.keeping import Keeping
from routesparse.engine.runtime.vllm.replay import Replayer
from routesparse.engine.runtime.vllm.requests import Requests, ServedModel, log
from routesparse.engine.runtime.vllm.settings import SWITCH, ServingSettings, from_environment


def register() -> None:
    """Called by vLLM in each of its processes, perhaps twice; does nothing unless it is switched on.

    Errors: ConfigError, InputError for a vLLM that was never compared.
    """
    import vllm
    from vllm.platforms import current_platform

    settings = from_environment(os.environ, on_gpu=not current_platform.is_cpu())
    if settings is None:
        return
    refusals.check_version(vllm.__version__)
    from vllm.exceptions import VLLMValidationError
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    from vllm.v1.core.sched.output import NewRequestData
    from vllm.v1.request import Request
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    # The CPU platform takes CPU_ATTN whatever is chosen, so stock names are overridden.
    names = ("CPU_ATTN",) if current_platform.is_cpu() else ("FLASH_ATTN", "TRITON_ATTN")
    for name in names:
        register_backend(AttentionBackendEnum[name], f"{__name__}.{name}")
    keep_apart(Request, settings)
    carry(NewRequestData)
    refuse_early(type(current_platform), VLLMValidationError)
    steps.at_start(WorkerWrapperBase, lambda runner: _requests(runner, settings))


def refuse_early(platform: Any, refusal: type[Exception]) -> None:
    """Let vLLM refuse a request that asks for what is not known, before it is scheduled.

    platform: the class of vLLM's current one. refusal: what vLLM answers with HTTP 400.
    """

    def checked(stock: Any) -> Any:
        def validate_request(inputs: Any, params: Any) -> None:
            try:
                Asked.of(getattr(params, "extra_args", None))
            except ConfigError as error:
                raise refusal(f"RouteSparse: {error}") from None
            stock(inputs, params)

        return validate_request

    steps.wrap(platform, "validate_request", checked, staticmethod)


def keep_apart(request_class: Any, settings: ServingSettings) -> None:
    """Let requests share keys in vLLM's prefix cache only with those that are routed the same way.

    request_class: vLLM's Request, whose hashes of blocks begin with the salt of the request it is made from.
    """

    def salted(stock: Any) -> Any:
        def from_engine_core_request(request: Any, *rest: Any) -> Any:
            own = copy.copy(request)
            own.cache_salt = way_of(settings, request.sampling_params) + (request.cache_salt or "")
            made = stock(own, *rest)
            made.external_req_id = request.external_req_id  # for ``carry``
            return made

        return from_engine_core_request

    steps.wrap(request_class, "from_engine_core_request", salted, staticmethod)


def carry(data_class: Any) -> None:
    """Let a request's trace headers and the id that its client gave reach the worker, which has vLLM's own id.

    data_class: vLLM's NewRequestData, which leaves them behind.
    """

    def carried(stock: Any) -> Any:
        def from_request(request: Any, *rest: Any, **named: Any) -> Any:
            made = stock(request, *rest, **named)
            made.trace_headers = request.trace_headers
            made.external_req_id = getattr(request, "external_req_id", None)  # vLLM's warm-up has none
            return made

        return from_request

    steps.wrap(data_class, "from_request", carried, staticmethod)


def way_of(settings: ServingSettings, params: Any) -> str:
    """How a request is routed, as 16 hexadecimal digits. params: vLLM's SamplingParams, or None."""
    try:
        asked = Asked.of(getattr(params, "extra_args", None))
    except ConfigError:
        asked = Asked(route=False)  # as it is served
    way = (settings.config, settings.calibration, settings.loss, asked.loss) if asked.route else None
    return hashlib.sha256(repr(way).encode()).hexdigest()[:16]


@functools.cache
def _routed(name: str) -> Any:
    from vllm.utils.import_utils import resolve_obj_by_qualname
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    made = backend.routed(resolve_obj_by_qualname(AttentionBackendEnum[name].value))
    # vLLM's CUDA platform looks a class up again, by the path that it has of itself.
    made.__module__, made.__qualname__ = __name__, name
    return made


def __getattr__(name: str) -> Any:
    """vLLM asks for a backend by its path: made when it is asked for, since the stock ones import their libraries."""
    if name in backend.SPLITS:
        return _routed(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _requests(runner: Any, settings: ServingSettings) -> Requests | None:
    """None where nothing is routed, which is said. Errors: as _chosen, and ProfileError."""
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    layers = get_layers_from_vllm_config(runner.vllm_config, AttentionLayerBase)
    installed = Installed.of(layers.values())
    config, parallel = runner.model_config, runner.parallel_config
    model = SimpleNamespace(name_or_path=config.model, config=config.hf_config)
    if not installed.routed:
        log.warning("RouteSparse: %s is NOT routed: %s", config.model, installed.why)
        return None
    dtype = str(config.dtype).removeprefix("torch.")
    served = ServedModel(
        *_names(model),
        layers=config.get_num_layers(parallel),
        heads=config.get_num_attention_heads(parallel),
        kv_heads=config.get_num_kv_heads(parallel),
        head_dim=config.get_head_size(),
        dtype=config.dtype,
        device=runner.device,
    )
    profile = NamedProfile(settings.profile).known(served.shape, settings.config)
    chosen = _chosen(settings, model, dtype, profile, settings.loss)
    # A request's own loss takes the place of a price of the settings.
    free = replace(settings, config=replace(settings.config, price=RouterConfig.price))
    by_request = functools.lru_cache(maxsize=64)(partial(_chosen, free, model, dtype, profile))
    requests = Requests(settings, chosen, by_request, served, profile)
    requests.batch_tokens = runner.vllm_config.scheduler_config.max_num_batched_tokens
    requests.keeping = _keeping(runner, requests, installed, list(layers))
    tell(requests, installed)
    requests.warm_up(config.max_model_len)
    return requests


def _keeping(runner: Any, requests: Requests, installed: Installed, layers: list[str]) -> Keeping | None:
    """Errors: UnsupportedModelError where a loss can't be predicted, and as Keeping."""
    settings, served = requests.settings, requests.model
    if not settings.keep:
        return None
    if installed.stock:
        told = f"no loss can be predicted where layers are stock ({installed.why}); leave {SWITCH}_KEEP out"
        raise UnsupportedModelError(told)
    fit = fitted.needed(served.revision, served.name, settings.loss or fitted.DEFAULT_LOSS)
    steps.hear(runner.get_model())
    return Keeping(settings, fit, requests.chosen, Replayer(runner, layers), served.name)


def _chosen(
    settings: ServingSettings, model: Any, dtype: str, profile: LatencyProfile | None, loss: float | None
) -> Chosen:
    """What requests are routed with that aim at a loss, or go by the settings' price. profile: None until measured.

    Errors: CalibrationError, ConfigError, ModelError where a loss or a calibration is given and the model's files are
    unknown.
    """
    config, calibration = settings.config, settings.calibration
    revision = partial(revision_of_model, model)
    if loss is None:
        return choose(config, calibration, revision, dtype, profile)
    config, aim = by_loss(loss, config, calibration, revision, model.name_or_path, settings.own_segment)
    if aim.found is None:
        log.warning("RouteSparse: %s", aim.says)
    return choose(config, aim.found, revision, dtype, profile)


def _names(model: Any) -> tuple[str, str]:
    """The model's name and revision for records: of a model whose files are not here, what vLLM was given, and ""."""
    try:
        return resolve(model.name_or_path)[1], revision_of_model(model)
    except ModelError:
        return str(model.name_or_path), ""


def tell(requests: Requests, installed: Installed) -> None:
    """Log what is routed and recorded, and why nothing will be where the spool is not there."""
    settings, config, every = requests.settings, requests.chosen.config, requests.settings.record_every
    least = requests.break_even()
    how = [
        f"policy {config.policy}",
        *([f"price {config.price:g}"] if config.policy == "priced" else []),
        *([f"loss target {settings.loss:g}"] if settings.loss is not None else []),
        "break-even to be measured" if least is None else f"break-even {least:,} tokens",
    ]
    log.info(
        "RouteSparse routes %d of %d layers of %s (%s)%s; %s",
        installed.routed,
        installed.layers,
        requests.model.name,
        ", ".join(how),
        f"; stock: {installed.why}" if installed.stock else "",
        f"1 of {every} routed prompts recorded in {settings.spool}" if every else "none recorded",
    )
    if every:
        try:
            shared_folder.check(settings.spool)
        except StoreError as error:
            log.warning("RouteSparse will record no request until this is mended: %s", error)
