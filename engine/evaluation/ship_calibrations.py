"""The bundled calibrations prose, code, dialog, mixed and robust, from windows measured once.

    python -m routesparse.engine.evaluation.ship_calibrations --units units --profile P.json --out data/calibrations

``--units`` names what ``trust_measures`` wrote (stems, without "-A.parquet"). The same fitting as in
`routesparse calibrate`: lambda, alpha and e from fold A, delta from fold B. Every window was measured at one lambda;
where fold A asks for another one this stops and says so.
"""

from __future__ import annotations

from pathlib import Path

from routesparse.engine.calibrating import GATE_STEP, Subject, assemble, wanted_gate
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import CalibrationError
from routesparse.engine.evaluation import study
from routesparse.engine.evaluation.trust_data import measures, read
from routesparse.engine.evaluation.trust_plan import BUCKETS, DOMAINS
from routesparse.engine.latency import LatencyProfile
from routesparse.engine.models import load_model

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
    config = RouterConfig(seed=arguments.seed, break_even_tokens=0)
    subject = Subject(
        loaded.name, loaded.revision, loaded.dtype, "H200 and CPU", LatencyProfile.load(arguments.profile)
    )
    folds = [measures(*read(arguments.units, fold)) for fold in ("A", "B")]
    gate = config.gate_threshold
    for name, parts in NAMES.items():
        mine = [[m for m in fold if m.domain in parts] for fold in folds]
        wanted = wanted_gate(mine[0], config, name == "robust")
        if abs(wanted - gate) >= GATE_STEP:
            raise CalibrationError(
                f"{name}: fold A asks for lambda {wanted:.3f}, the windows were measured at {gate:.3f}; "
                f"measure again with --gate {wanted:.3f}"
            )
        made = assemble(
            mine[0],
            mine[1],
            RouterConfig(gate=gate, seed=arguments.seed, break_even_tokens=0),
            subject,
            name=name,
            domain=name,
            lengths=BUCKETS,
            robust=name == "robust",
            provenance={"command": study.header(loaded, arguments)["command"], "audit_rows": "body, or 1024"},
        )
        path = made.save(arguments.out)
        study.note(
            f"{path}: alpha {made.alpha:.3f}, " + ", ".join(f"{b.prompts}: {b.deltas}" for b in made.buckets)
        )


if __name__ == "__main__":
    main()
