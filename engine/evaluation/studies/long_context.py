"""Which rescaling of rotary positions keeps retrieval beyond the trained context, after dense and routed prefills.

    python -m routesparse.engine.evaluation.studies.long_context --seed 1 --out data/results/long_context.json

The same RULER prompts are answered by the model as it is and under each scaling (models/rope.py), each with both
prefills and dense decoding, and scored as RULER does. A scaling's factor is the longest length over the original
context, at every length, so the shorter ones show what it costs where it is not needed.
  none       the model as it is; beyond its context its angles are ones that it never saw
  linear     Position Interpolation
  yarn       YaRN with its default ramp and attention factor
  longrope   LongRoPE's form with factors s^(2i/(d-2)) for the pairs i (NTK-aware interpolation), the seed of that
             paper's search: nobody searched factors for this model
A low score of both prefills is the scaling's; one of the routed prefill alone is routing's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from routesparse.engine.config import RouterConfig, default_segment
from routesparse.engine.decide.decision import Computed
from routesparse.engine.demo_model.tasks import Sample
from routesparse.engine.device.graphs import Graphs
from routesparse.engine.evaluation import study
from routesparse.engine.evaluation.studies.needles import Answer, answer, samples
from routesparse.engine.models.load import LoadedModel, load_model
from routesparse.engine.models.rope import RopeScaling
from routesparse.engine.profiles.measure import NamedProfile
from routesparse.engine.runtime.session import RoutingSession

SCALINGS = ("none", "linear", "yarn", "longrope")
TASKS = ("niah_single_2", "niah_multikey_2", "vt")
METHODS = ("dense", "routed")


def main(argv: list[str] | None = None) -> None:
    """Run the study and write its file after every row."""
    parser = study.parser(__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[131_072, 262_144])
    parser.add_argument("--prompts", type=int, default=8, help="per task and length")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--scalings", nargs="+", choices=SCALINGS, default=list(SCALINGS))
    parser.add_argument("--original", type=int, help="tokens of the original context; default: the model's")
    arguments = parser.parse_args(argv)
    plain = load_model(arguments.model)
    original = arguments.original or plain.max_tokens
    config = RouterConfig(
        segment_tokens=default_segment(plain.on_gpu), break_even_tokens=0, seed=arguments.seed
    )
    haystacks = [path.read_text() for path in sorted((arguments.data / "prose" / "test").glob("*.txt"))]
    if not haystacks:
        parser.error(
            f"{arguments.data / 'prose' / 'test'} holds no *.txt; pass a folder of texts with --data"
        )
    rows: list[dict[str, Any]] = []
    result = {
        **study.header(plain, arguments),
        "original": original,
        "config": config.to_dict(),
        "rows": rows,
    }
    drawn = {
        (task, length): samples(plain, task, length, arguments.prompts, haystacks, arguments.seed)
        for task in arguments.tasks
        for length in arguments.lengths
    }
    own = getattr(plain.model.config, "rope_parameters", None) or {}
    pairs = int(plain.head_dim * (own.get("partial_rotary_factor") or 1.0)) // 2
    for name in arguments.scalings:
        rope = scaling(name, max(arguments.lengths) / original, original, pairs)
        loaded = plain if rope is None else load_model(arguments.model, rope=rope)
        for (task, length), prompts in drawn.items():
            row = measured(loaded, prompts, config)
            rows.append({"scaling": name, "task": task, "tokens": length, "rope": loaded.rope, **row})
            study.note(str({key: value for key, value in rows[-1].items() if key not in ("rope", "scores")}))
            study.save(arguments.out, result)


def scaling(name: str, factor: float, original: int, pairs: int) -> RopeScaling | None:
    """The request of that name; pairs: rotary pairs of a head. Errors: ConfigError for a factor below 1."""
    if name == "none":
        return None
    values = {"rope_type": name, "factor": factor, "original_max_position_embeddings": original}
    if name == "longrope":
        values["short_factor"] = [1.0] * pairs
        values["long_factor"] = [float(f) for f in factor ** (np.arange(pairs) / (pairs - 1))]
    return RopeScaling.of(values)


def measured(loaded: LoadedModel, prompts: list[Sample], config: RouterConfig) -> dict[str, Any]:
    """Scores in percent by prefill, how often both answer alike, and what routing read."""
    answers = [answered(loaded, sample, config) for sample in prompts]
    scores = {method: [one[method].score for one in answers] for method in METHODS}
    return {
        "revision": loaded.revision,
        "n": len(answers),
        **{method: 100 * float(np.mean(scores[method])) for method in METHODS},
        "identical": float(np.mean([one["dense"].text == one["routed"].text for one in answers])),
        "density": float(np.mean([one["routed"].density for one in answers])),
        "scores": scores,
    }


def answered(loaded: LoadedModel, sample: Sample, config: RouterConfig) -> dict[str, Answer]:
    """One prompt after both prefills."""
    graphs: Graphs[Computed] = Graphs()
    session = RoutingSession(config, profile=NamedProfile(), salt=sample.prompt[:4_096], graphs=graphs)
    return {
        "dense": answer(loaded, sample, None, lambda: 1.0),
        "routed": answer(loaded, sample, session, lambda: float(session.trace.record().run.density or 1.0)),
    }


if __name__ == "__main__":
    main()
