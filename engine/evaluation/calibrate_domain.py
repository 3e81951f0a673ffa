"""Calibrate one domain from its calibration documents and ship the result.

    python -m routesparse.engine.evaluation.calibrate_domain --domain prose --out data/calibrations/prose.json

Documents alternate between fold A and fold B in order of name; windows have uniform lengths in the range.
"""

from __future__ import annotations

import hashlib
import random
import sys

from routesparse.engine.calibrating import calibrate
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import CalibrationError
from routesparse.engine.evaluation import study
from routesparse.engine.evaluation.windows import Window, windows
from routesparse.engine.models import load_model


def main(argv: list[str] | None = None) -> None:
    """Make <out>, a calibration file named after its stem."""
    parser = study.parser(__doc__)
    parser.add_argument("--domain", default="prose")
    parser.add_argument("--tokens", type=int, nargs=2, default=[4_096, 8_192], metavar=("LEAST", "MOST"))
    parser.add_argument("--fold-a", type=int, default=20, help="windows")
    parser.add_argument("--fold-b", type=int, default=40, help="windows")
    arguments = parser.parse_args(argv)
    least, most = arguments.tokens
    loaded = load_model(arguments.model)
    config = RouterConfig(seed=arguments.seed, break_even_tokens=0)
    paths = sorted((arguments.data / arguments.domain / "calibration").glob("*.txt"))
    if len(paths) < 2:
        raise CalibrationError(
            f"{arguments.domain} has {len(paths)} calibration documents; two folds need two"
        )
    folds = {path.stem: place % 2 for place, path in enumerate(paths)}
    rng = random.Random(arguments.seed)
    made: tuple[list[Window], list[Window]] = ([], [])
    wanted = (arguments.fold_a, arguments.fold_b)
    source = windows(
        arguments.data,
        arguments.domain,
        "calibration",
        most,
        2 * len(paths) * max(wanted),
        loaded.tokenizer,
        arguments.seed,
    )
    for window in source:
        fold = made[folds[window.document]]
        if len(fold) < wanted[folds[window.document]]:
            fold.append(window)
        if all(len(f) == w for f, w in zip(made, wanted, strict=True)):
            break
    prompts = [[w.token_ids[: rng.randint(least, most)] for w in fold] for fold in made]
    calibration = calibrate(
        loaded,
        prompts[0],
        prompts[1],
        config,
        name=arguments.out.stem,
        domain=arguments.domain,
        documents=[hashlib.sha256(p.read_bytes()).hexdigest() for p in paths],
        provenance={
            "command": study.header(loaded, arguments)["command"],
            "fold_a_documents": sorted({w.document for w in made[0]}),
            "fold_b_documents": sorted({w.document for w in made[1]}),
        },
        progress=lambda stage, done, total: print(f"{stage} {done}/{total}", file=sys.stderr, flush=True),
    )
    study.note(f"lambda {calibration.gate:.3f}, {calibration.buckets}")
    calibration.save(arguments.out.parent)


if __name__ == "__main__":
    main()
