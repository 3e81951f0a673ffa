"""A tuned price: the cheapest price at which a loss against dense attention stayed below a target, and its evidence.

It takes the place of a price chosen by hand under the policy "priced"; ``calibration/choose.py`` makes it
and proves what it claims. It is an artifact of its own beside the calibrations, in a folder below theirs: a
calibration's delta is stamped with the one price that it was measured at, and stays valid as it is.

The price belongs to the model's weights, the pattern library and the policy's settings, which must match. Device and
number format are provenance: how segments are cut does not matter for windows that fit in one, and a block's worth is
defined alike on all devices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from routesparse.engine import paths
from routesparse.engine.calibration import artifact, folders
from routesparse.engine.calibration.artifact import stamp_of, unread_by
from routesparse.engine.calibration.checks import RoundedShare, check_stamp
from routesparse.engine.config import Confidence, Price, RouterConfig
from routesparse.engine.errors import CalibrationError, shortened
from routesparse.engine.files.plain_files import read_json
from routesparse.engine.method.families import library_hash, stamped_families
from routesparse.engine.schema import (
    FILLED,
    POSITIVE,
    Count,
    FieldError,
    Number,
    Object,
    Positive,
    Real,
    Text,
    ascending,
    checked,
    schema_of,
)

KIND, SCHEMA = "tuned price", 1
FOLDER = "tuned"  # below each folder of calibrations
Measure = Literal["kl", "agreement", "nats", "answer"]
Unit = Literal["document", "window"]
MEASURES: tuple[Measure, ...] = ("kl", "agreement", "nats", "answer")
WORDS = {
    "kl": "KL to dense",
    "agreement": "next-token agreement",
    "nats": "rise of the text's loss",
    "answer": "rise of the gold answers' loss",
}
MOST_TIMES_LONGER = 2  # a prompt than the windows, for the claim to be told of it (ours)
# Of a calibration's stamp: what a tuned price sets, and what it holds for alike where a window fits in one.
FREE = ("price", "segment_tokens")
_MOST_FILE_BYTES = 1 << 22
AboveZero = Annotated[float, Number(POSITIVE)]


@dataclass(frozen=True)
class PriceResult:
    """One price of the grid. loss: the mean of min(loss, cap) over units; bound: its upper bound.

    largest: loss of a single window; above: share of windows above the target; kept: it and every dearer one passed.
    """

    price: Price
    loss: Real
    bound: Real
    largest: Real
    above: RoundedShare
    area: RoundedShare
    kept: bool


@dataclass(frozen=True)
class Part:
    """What stands behind one domain. unit: what the bound counts; a document stands for its cluster.

    A cluster is a document, or a project where documents are pieces of projects.
    """

    domain: Text
    unit: Unit
    windows: Positive
    documents: Positive
    clusters: Positive

    @property
    def strata(self) -> str:
        """How many clusters there are, and what they are."""
        return f"{self.clusters} {'documents' if self.clusters == self.documents else 'projects'}"


@dataclass(frozen=True)
class TunedPrice:
    """The artifact. Losses are in the measure's unit: nats a token, or for agreement the share that differs."""

    name: Text
    domain: Text
    measure: Measure
    target: AboveZero  # as asked for: of an agreement the least share that agrees
    limit: AboveZero  # the same as a loss: 1 - target of an agreement
    cap: AboveZero  # a window's loss counts at most so much
    confidence: Confidence
    price: Price
    robust: bool  # True: the target holds for each part by itself; False: for their mean
    tested: Annotated[tuple[PriceResult, ...], FILLED]  # ascending in price
    parts: Annotated[tuple[Part, ...], FILLED]
    tokens: Positive  # of a window
    model: Text
    model_revision: Text
    dtype: Text
    device: Text
    library_hash: Text
    stamp: Object
    documents: tuple[Text, ...]  # sha256
    seed: Count
    measured: tuple[Text, ...]  # commands
    command: Text
    commit: Text | None

    @property
    def at_price(self) -> PriceResult:
        """The row of the price that was chosen."""
        return next(row for row in self.tested if row.price == self.price)

    @property
    def units(self) -> str:
        """What was measured."""
        return "questions" if self.measure == "answer" else "windows"

    @property
    def goal(self) -> str:
        """The target in words."""
        if self.measure == "agreement":
            return f"at most {100 * self.limit:g} % of next tokens changed (agreement {self.target:g})"
        return f"{WORDS[self.measure]} at most {self.limit:g} nats a token"

    @property
    def says(self) -> str:
        """The claim in one line."""
        on = ", ".join(
            part.domain + (f" (the {part.strata} measured)" if part.unit == "window" else "")
            for part in self.parts
        )
        joined = "each of " if self.robust else "the mean of " if len(self.parts) > 1 else ""
        return (
            f"price {self.price:g}: {self.goal} on {joined}{on}, in the mean over {self.units} of up to "
            f"{self.tokens:,} tokens, each counted up to {self.cap:g}, with confidence {self.confidence:g}"
            + ("; it says nothing about other tokens" if self.measure == "answer" else "")
        )

    def applied(
        self, config: RouterConfig, given: float | None = None, own_segment: bool = True
    ) -> RouterConfig:
        """The configuration at this price.

        given: a price that was asked for too. own_segment: False where nobody asked for the configuration's segments,
        which then grow to what was measured in one. Errors: CalibrationError.
        """
        if given is not None and given != self.price:
            raise CalibrationError(
                f"price {given:g} contradicts {self.name!r}, which says {self.price:g}; leave one of the two out"
            )
        segment = config.segment_tokens if own_segment else max(config.segment_tokens, self.segment)
        return dataclasses.replace(config, price=self.price, segment_tokens=segment)

    @property
    def segment(self) -> int:
        """The least tokens of a segment that the claim holds for."""
        return -(-self.tokens // RouterConfig.block_q) * RouterConfig.block_q

    def mismatch(self, model_revision: str, config: RouterConfig) -> str | None:
        """Why the claim does not hold for this run, in one sentence; None where it does."""
        if self.model_revision != model_revision:
            return (
                f"{self.name!r} was tuned for model {self.model!r} revision {self.model_revision}, this model has "
                f"revision {model_revision}; tune a price for it, or pass --price"
            )
        if stamped_families(self.library_hash) is None:
            return (
                f"{self.name!r} was tuned with pattern library {self.library_hash}, this version has "
                f"{library_hash()}; tune again, or pass --price"
            )
        if config.segment_tokens < self.tokens:
            return (
                f"{self.name!r} was tuned on {self.units} of {self.tokens:,} tokens in one segment, this run's have "
                f"{config.segment_tokens:,}; pass --segment {self.segment} or more, or --price"
            )
        unread = {*unread_by(config), *FREE}
        for name, value in stamp_of(config).items():
            if name not in unread and self.stamp.get(name) != value:
                return (
                    f"{self.name!r} was tuned with {name} {self.stamp.get(name)!r}, this run has {value!r}; "
                    "use the same, or pass --price"
                )
        return None

    def beyond(self, tokens: int) -> str | None:
        """Why nothing was measured about a prompt of so many tokens; None where something was."""
        if tokens <= MOST_TIMES_LONGER * self.tokens:
            return None
        return f"{self.name!r} was tuned on {self.units} of up to {self.tokens:,} tokens, this prompt has {tokens:,}"

    def check(self, model_revision: str, config: RouterConfig) -> None:
        """Errors: CalibrationError naming the first thing that differs."""
        found = self.mismatch(model_revision, config)
        if found is not None:
            raise CalibrationError(found)

    def save(self, path: Path) -> Path:
        """Write the file, replacing it whole."""
        return paths.write_json(path, {"schema": SCHEMA, "kind": KIND, **dataclasses.asdict(self)})


def ordered(found: Iterable[TunedPrice]) -> list[TunedPrice]:
    """What promises the same stands together."""
    return sorted(found, key=lambda one: (MEASURES.index(one.measure), one.name))


def own_folder(owner: str | None = None) -> Path:
    """Where an owner's tuned prices go; None is this machine's."""
    return folders.own_folder(owner) / FOLDER


def known(owner: str | None = None) -> list[str]:
    """The names of the bundled ones, of those made on this machine, and of this owner's."""
    return folders.names([folder / FOLDER for folder in folders.folders(owner)])


def check_free(name: str) -> None:
    """A tuned price may not hide a bundled one, nor any calibration. Errors: CalibrationError."""
    owners = paths.calibrations().glob("of-*")
    places = [paths.DATA / "calibrations" / FOLDER, *folders.folders(None), *owners]
    if any((folder / f"{name}.json").exists() for folder in places):
        raise CalibrationError(
            f"{name!r} is the name of a bundled tuned price or of a calibration; choose another --name"
        )


def find_known(name: str, owner: str | None = None) -> TunedPrice | None:
    """The tuned price of this name; None where it names none, but perhaps a calibration, which comes first.

    Errors: CalibrationError for a file that is damaged.
    """
    if name not in known(owner) or name in artifact.known(owner):
        return None
    return load(name, owner)


def find(name: str, owner: str | None = None) -> TunedPrice | None:
    """``find_known``, or the tuned price in this .json file. Errors: CalibrationError for a file that is damaged."""
    if not name.endswith(".json"):
        return find_known(name, owner)
    try:
        values = read_json(Path(name), _MOST_FILE_BYTES)
    except (OSError, ValueError):  # the reader of calibrations says what is wrong with it
        return None
    return load(name, owner) if isinstance(values, dict) and values.get("kind") == KIND else None


def load(name: str, owner: str | None = None) -> TunedPrice:
    """One by its name, or by its path ending in .json. Errors: CalibrationError."""
    places = [folder / FOLDER for folder in folders.folders(owner)]
    found = folders.read("tuned price", "tune", name, places, _from_dict)
    if found is None:
        here = ", ".join(known(owner)) or "none"
        raise CalibrationError(f"no tuned price {shortened(name)!r}; known ones: {here}")
    return found


def _from_dict(values: Any) -> TunedPrice:
    """Errors: FieldError for the first value outside its meaning."""
    schema = schema_of(values)
    if schema != SCHEMA:
        raise FieldError("schema", schema, f"{SCHEMA}, which this version reads")
    if (kind := values.pop("kind", None)) != KIND:
        raise FieldError("kind", kind, KIND)
    found = checked(TunedPrice, values)
    check_stamp(found.stamp, "stamp")
    ascending([row.price for row in found.tested], "tested.price")
    if not any(row.price == found.price and row.kept for row in found.tested):
        raise FieldError("price", found.price, "one of the tested prices that were kept")
    return found
