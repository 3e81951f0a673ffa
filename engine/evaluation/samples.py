"""Make the bundled sample runs: three prompts, analysed as `routesparse analyze --audit rows --measure-dense` does,
with the calibration of the prompt's domain where one ships. Prompts below this machine's break-even are routed too, so
that there is something to see; dense and routed times stand side by side in the record.

    python -m routesparse.engine.evaluation.samples --out data/samples/runs

``--prompts`` makes the prompt files first: the opening of a prose document and of a code document of the data
folder's test split, and needles among needles (niah_multikey_2), which needs no text at all.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from routesparse.engine import paths
from routesparse.engine.analyze import analyze_prompt
from routesparse.engine.config import RouterConfig
from routesparse.engine.demo_model.tasks import fit_sample
from routesparse.engine.evaluation import study
from routesparse.engine.models.load import LoadedModel, load_model
from routesparse.engine.prompts import read_prompt, tokenize
from routesparse.engine.store.bundle import write_bundle

PROMPTS = paths.DATA / "samples" / "prompts"
SOURCES = {"prose": "prose/test/145.txt", "code": "code/test/networkx-004.txt"}
CHARACTERS_PER_TOKEN = {"prose": 3.0, "code": 2.5}


def main(argv: list[str] | None = None) -> None:
    """Write one bundle per prompt into --out; bundles made before are removed."""
    parser = study.parser(__doc__)
    parser.add_argument("--tokens", type=int, default=7_600, help="of a prompt, about")
    parser.add_argument("--prompts", action="store_true", help="make the prompt files first")
    arguments = parser.parse_args(argv)
    loaded = load_model(arguments.model)
    if arguments.prompts:
        make_prompts(loaded, arguments.data, arguments.tokens)
    shutil.rmtree(arguments.out, ignore_errors=True)
    arguments.out.mkdir(parents=True)
    for path in sorted(PROMPTS.glob("*.txt")):
        prompt = tokenize(read_prompt(path), loaded.tokenizer, loaded.max_tokens)
        record = analyze_prompt(
            prompt,
            loaded,
            RouterConfig(seed=arguments.seed, break_even_tokens=0),
            calibration=path.stem if (paths.DATA / "calibrations" / f"{path.stem}.json").exists() else None,
            audit="rows",
            measure_dense=True,
            domain=path.stem,
        )
        bundle = write_bundle(record, arguments.out)
        run = record.run
        study.note(
            f"{path.stem}: {run.tokens} tokens, density {run.density}, coverage {run.coverage}, {bundle}"
        )


def make_prompts(loaded: LoadedModel, data: Path, tokens: int) -> None:
    """Prompt files of about ``tokens`` tokens, cut at a line's end."""
    PROMPTS.mkdir(parents=True, exist_ok=True)
    for domain, source in SOURCES.items():
        text = (data / source).read_text()
        end = text.rfind("\n", 0, round(tokens * CHARACTERS_PER_TOKEN[domain])) + 1
        (PROMPTS / f"{domain}.txt").write_text(text[:end])

    def count(text: str) -> int:
        return len(loaded.tokenizer(text, add_special_tokens=False)["input_ids"])

    sample = fit_sample("niah_multikey_2", tokens, count_tokens=count, seed=2_026, index=0)
    (PROMPTS / "needles.txt").write_text(sample.prompt + sample.answer_prefix)


if __name__ == "__main__":
    main()
