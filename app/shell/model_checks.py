"""What a model still lacks before it can be analysed well: from its files, no weights are loaded, no code is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Literal

from routesparse.app.ui import numbers
from routesparse.app.ui.states import wrong
from routesparse.engine.calibration import fitted
from routesparse.engine.calibration.artifact import Calibration, load_calibration
from routesparse.engine.calibration.choose import aimed
from routesparse.engine.calibration.fitted import DEFAULT_LOSS
from routesparse.engine.calibration.folders import folders
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import InputError, ModelError
from routesparse.engine.jobs.presence import Device
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.models import gguf
from routesparse.engine.models.files import (
    check_tokenizer,
    check_weights,
    family_of,
    read_config,
    revision_of,
    weight_files,
)
from routesparse.engine.models.token_count import PromptSize, size_of
from routesparse.engine.profiles.files import stored_for

State = Literal["ok", "missing", "problem"]
_USUAL_TOKENS = 8_192


@dataclass(frozen=True)
class Check:
    """One line of the list. "missing" keeps nobody from analysing, "problem" does."""

    name: str
    state: State
    text: str


@dataclass(frozen=True)
class Checked:
    """A model's list, and what its page offers: calibrations that fit, and the size where the files are whole.

    fit: of the weights, where it can be read.
    """

    checks: Sequence[Check]
    size: PromptSize | None
    fitting: Sequence[Calibration] = ()
    fit: fitted.Fitted | None = None

    @property
    def usable(self) -> bool:
        """Whether a prompt can be analysed with it."""
        return all(check.state != "problem" for check in self.checks)


def check(
    folder: Path, model: str, owner: str | None, devices: Sequence[Device], memory_bytes: int
) -> Checked:
    """The whole list. model: as requests name it. devices: of live workers; memory_bytes: of this machine."""
    if folder.suffix == gguf.SUFFIX and folder.is_file():
        return Checked(_packed(folder), None)
    files = [
        _tried("Family", lambda: f"{family_of(read_config(folder))}: tested; no code of the folder is run."),
        _tried("Weights", lambda: _weights(folder)),
        _tried("Tokenizer", lambda: _tokenizer(folder)),
    ]
    try:
        read_config(folder)
    except ModelError:
        return Checked(files, None)
    if files[2].state != "ok":
        return Checked(files, None)
    try:
        size = size_of(model, 1)
    except ModelError as error:
        return Checked([*files, Check("Context", "problem", f"{error}.")], None)
    heads = f"{size.layers} layers, {size.heads} query heads over {size.kv_heads} KV heads of size {size.head_dim}"
    checks = [*files, Check("Context", "ok", f"Reads up to {size.max_tokens:,} tokens; {heads}.")]
    if files[1].state == "ok":
        checks.append(_memory(model, size, devices, memory_bytes))
    checks.append(_profile(size, devices))
    fitting: list[Calibration] = []
    fit = None
    if files[1].state == "ok":
        calibrated, fitting = _calibrations(folder, owner)
        target, fit = _fit(folder)
        checks += [calibrated, target]
    return Checked(checks, size, fitting, fit)


def calibrations_for(folder: Path, owner: str | None, rescaled: bool = False) -> list[Calibration]:
    """Those made for exactly these weights; what can't be read is left out. Errors: ModelError.

    rescaled: those of a model of this name with other positions or weights instead; a worker that has loaded the model
    tells which.
    """
    revision = revision_of(folder)
    files: dict[str, Path] = {}
    for place in folders(owner):
        for file in sorted(place.glob("*.json")):
            files.setdefault(file.stem, file)
    found = [_calibration(file, file.stat().st_mtime_ns) for _, file in sorted(files.items())]
    made = [one for one in found if one is not None]
    if rescaled:
        return [one for one in made if one.model == folder.name and one.model_revision != revision]
    return [one for one in made if one.model_revision == revision]


def _packed(file: Path) -> list[Check]:
    """Of a GGUF file that was not unpacked yet: what its header says."""
    try:
        found = gguf.describe(file)
    except InputError as error:
        return [Check("GGUF file", "problem", f"{error}.")]
    licence = f", licence {found.licence}" if found.licence else ""
    tokenizer = "In the file." if found.has_tokenizer else "The file holds none; use one that does."
    return [
        Check("Family", "ok", f"{found.config['model_type']}: tested; no code of the file is run."),
        Check("Weights", "ok", f"{found.numbers / 1e6:,.0f} million, most of them {found.stored}{licence}."),
        Check("Tokenizer", "ok" if found.has_tokenizer else "problem", tokenizer),
        Check("Unpacked", "missing", f"Not yet: once, to {numbers.size(found.unpacked_bytes)} in bfloat16."),
    ]


def _tried(name: str, what: Callable[[], str]) -> Check:
    try:
        return Check(name, "ok", what())
    except InputError as error:
        return Check(name, "problem", f"{error}.")


def _weights(folder: Path) -> str:
    check_weights(folder)
    files = weight_files(folder)
    total = sum(file.stat().st_size for file in files)
    return f"{numbers.size(total)} in {numbers.several(len(files), 'safetensors file')}, headers whole."


def _tokenizer(folder: Path) -> str:
    check_tokenizer(folder, read_config(folder).get("vocab_size"))
    return "A fast tokenizer lies in the folder."


def _memory(model: str, size: PromptSize, devices: Sequence[Device], memory_bytes: int) -> Check:
    """The usual length must fit on a worker's device; the whole context may not."""
    places = {device.name: device for device in devices} or {"": Device("This machine", False, memory_bytes)}
    usual, whole = size_of(model, min(_USUAL_TOKENS, size.max_tokens)), size_of(model, size.max_tokens)
    said, states = [], []
    for device in places.values():
        least, most = (s.gpu_memory_bytes if device.on_gpu else s.memory_bytes for s in (usual, whole))
        fits = [need <= device.memory_bytes for need in (least, most)]
        states.append(0 if not fits[0] else 1 if not fits[1] else 2)
        longest = (
            "" if whole.tokens == usual.tokens else f", one of {whole.tokens:,} about {numbers.size(most)}"
        )
        said.append(
            f"{numbers.device(device.name)} has {numbers.size(device.memory_bytes)}; a prompt of {usual.tokens:,} "
            f"tokens needs about {numbers.size(least)}{longest}."
        )
    worst: State = ("problem", "missing", "ok")[min(states)]  # type: ignore[assignment]
    if worst == "problem":
        said.append("Start a worker where there is more memory, or take a smaller model.")
    return Check("Memory", worst, " ".join(said))


def _profile(size: PromptSize, devices: Sequence[Device]) -> Check:
    found, broken = [], []
    for file in stored_for(size.head_dim, RouterConfig()):
        try:
            found.append(loaded_profile(file, file.stat().st_mtime_ns))
        except (InputError, OSError) as error:
            broken.append(wrong(error))
    known = {(one.device, one.dtype) for one in found}
    lacking = [device for device in devices if (device.name, device.dtype) not in known]
    means = "It tells the router what a plan costs here."
    if found and devices and not lacking:
        names = ", ".join(sorted({numbers.device(device.name) for device in devices}))
        return Check("Latency profile", "ok", f"Stored for head size {size.head_dim} on {names}. {means}")
    if broken:
        return Check("Latency profile", "missing", f"{broken[0]}. The first job measures a new one.")
    what = f"None for head size {size.head_dim}"
    if lacking:
        what += f" on {numbers.device(lacking[0].name)}"
    elif found:
        names = ", ".join(sorted({numbers.device(one.device) for one in found}))
        what = f"For head size {size.head_dim} on {names}; whether a worker has it is not known"
    text = f"{what}. {means} The first job measures a quick one in seconds; a full one is more precise."
    return Check("Latency profile", "missing", text)


def _calibrations(folder: Path, owner: str | None) -> tuple[Check, list[Calibration]]:
    try:
        found, revision = calibrations_for(folder, owner), revision_of(folder)
    except ModelError as error:
        return Check("Calibrations", "problem", f"{error}."), []
    reasons = [one.mismatch(revision, RouterConfig()) for one in found]
    fitting = [one for one, reason in zip(found, reasons, strict=True) if reason is None]
    if fitting:
        return Check("Calibrations", "ok", "; ".join(map(_said, fitting)) + "."), fitting
    text = (
        "None for these weights. Everything works without one; with one there is the conformal claim, for prompts like "
        "the texts that you calibrate on."
    )
    if found:
        text = f"None fits the default settings: {reasons[0]}."
    return Check("Calibrations", "missing", text), []


def _fit(folder: Path) -> tuple[Check, fitted.Fitted | None]:
    try:
        found = fitted.of_model(revision_of(folder))
    except InputError as error:
        return Check("Loss target", "problem", f"{error}."), None
    if found is None:
        told = f"Not fitted: no loss target; price {RouterConfig.price:g}."
        return Check("Loss target", "missing", told), None
    prices = []
    for kind in [*found.domains, fitted.MIXED]:
        aim = aimed(found, kind, DEFAULT_LOSS)
        prices.append(f"{aim.price:g} on {kind}" + " (the least; not kept at .95)" * (aim.found is None))
    on = f"Fitted on {', '.join(found.domains)}"
    told = f"{on}; price for a loss of {DEFAULT_LOSS:g} nats: {', '.join(prices)}."
    return Check("Loss target", "ok", told), found


def _said(one: Calibration) -> str:
    lengths = "no length"
    if one.buckets:
        lengths = f"{one.buckets[0].min_tokens:,} to {one.buckets[-1].max_tokens:,} tokens"
    try:
        made = datetime.fromisoformat(str(one.provenance["created_at"]))
    except (KeyError, ValueError):
        return f"{one.name} ({lengths})"
    days = (datetime.now(UTC) - made.astimezone(UTC)).days
    age = "made today" if days < 1 else f"{numbers.several(days, 'day')} old"
    return f"{one.name} ({lengths}, {age})"


@cache
def _calibration(file: Path, changed_ns: int) -> Calibration | None:
    """changed_ns is part of the key; None where it can't be read, which the page Domains explains."""
    try:
        return load_calibration(str(file))
    except InputError:
        return None


@cache
def loaded_profile(file: Path, changed_ns: int) -> LatencyProfile:
    """changed_ns is part of the key. Errors: ProfileError."""
    return LatencyProfile.load(file)
