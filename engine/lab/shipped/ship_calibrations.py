"""The bundled calibrations prose, code, dialog, mixed and robust, from windows measured once.

    python -m routesparse.engine.lab.shipped.ship_calibrations --units units.jsonl.gz --profile P.json \\
        --out data/calibrations

``--units`` names what ``measure.py`` wrote. The same fitting as in `routesparse calibrate`: alpha and e from fold A,
delta from fold B.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from routesparse.engine.calibrate.fit import Recipe, Subject, assemble, fit_alpha
from routesparse.engine.errors import CalibrationError
from routesparse.engine.lab import study
from routesparse.engine.lab.studies.coverage.data import load, measures
from routesparse.engine.lab.studies.coverage.plan import BUCKETS, DOMAINS
from routesparse.engine.lab.studies.coverage.units import BODY_ROWS
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.models.load import load_model

NAMES = {
    "prose": ("prose",),
    "code": ("code",),
    "dialog": ("dialog",),
    "mixed": DOMAINS,
    "robust": DOMAINS,
}


def main(argv: list[str] | None = None) -> None:
    """Write one file per name into --out."""
    parser = study.parser(__doc__)
    parser.add_argument("--units", type=Path, nargs="+", required=True)
    parser.add_argument("--profile", type=Path, required=True)
    arguments = parser.parse_args(argv)
    loaded = load_model(arguments.model, device="cpu")
    measured = load(arguments.units)
    config = replace(measured.config, seed=arguments.seed)
    told = measured.provenance
    subject = Subject(
        loaded.name, loaded.revision, loaded.dtype, device_text(told), LatencyProfile.load(arguments.profile)
    )
    window = measured.windows.iloc[0]
    if (subject.profile.name, subject.revision, subject.dtype) != tuple(
        window[["profile", "revision", "dtype"]]
    ):
        raise CalibrationError(
            f"the windows were measured with profile {window['profile']}, model revision {window['revision']} in "
            f"{window['dtype']}; pass the same"
        )
    folds = [measures(*measured.part(fold)) for fold in ("A", "B")]
    for name, parts in NAMES.items():
        fold_a, fold_b = ([m for m in fold if m.domain in parts] for fold in folds)
        of = replace(config, alpha=fit_alpha(fold_a))
        recipe = Recipe(name, name, of, BUCKETS, robust=name == "robust")
        made = assemble(
            fold_a,
            fold_b,
            recipe,
            subject,
            {
                "command": study.command(),
                "measured": told["runs"],
                "windows_by_device": told["windows_by_device"],
                "audit_rows": f"the body on a GPU, {BODY_ROWS} strata of it on a CPU",
            },
        )
        path = made.save(arguments.out)
        study.note(
            f"{path}: alpha {made.alpha:.3f}, " + ", ".join(f"{b.prompts}: {b.deltas}" for b in made.buckets)
        )


def device_text(told: dict[str, Any]) -> str:
    """The devices of the measuring, as they named themselves: how many windows on which."""
    counts = told["windows_by_device"]
    names = {
        kind: sorted({n for run in told["runs"] for n in _names(run["devices"][kind])}) for kind in counts
    }
    return "; ".join(f"{', '.join(names[kind])}: {count} windows" for kind, count in counts.items())


def _names(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else names


if __name__ == "__main__":
    study.run(main)
