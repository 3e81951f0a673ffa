"""Make the bundled sample runs: three prompts, analysed as `routesparse analyze --audit rows --measure-dense` does,
each prompt to show one thing. The prose runs under the defaults, at the loss that the model's fit has a price for. The
code runs with the calibration of prose, so that the drift alarm can be seen: it must go off. The needles run under the
policy "certified", whose gate asks each head for a mass of .9, so that fallbacks can be seen, which the default policy
hardly has: at least one unit must fall back. Nothing is forced: every prompt has to lie above this machine's
break-even. Dense and routed times stand side by side in the record.

    python -m routesparse.engine.lab.shipped.samples --prompts --out data/samples/runs

Of another model: the opening of a text of each domain under the default settings, whatever comes of it. A public one of
1.5B parameters ships so, made on a GPU:

    python -m routesparse.engine.lab.shipped.samples --model Qwen2.5-Coder-1.5B-Instruct --tokens 32768 --seed 7 \\
        --out data/samples/runs

Or the openings of named documents, several of a domain, so that it can be seen how much the prompts of one domain
differ. These keep no text, are not audited, and have coarser heatmaps:

    python -m routesparse.engine.lab.shipped.samples --model SmolLM2-135M-Instruct --tokens 4096 \\
        --out data/samples/runs --documents prose/calibration/16351.txt code/calibration/flask-002.txt ...

``--prompts`` makes the prompt files first: the opening of a prose document and of a code document of the data
folder's test split, and needles among needles (niah_multikey_2), which needs no text at all.
"""

from __future__ import annotations

import argparse
import json
import shutil
from functools import partial
from hashlib import sha256
from pathlib import Path

from routesparse.engine import paths
from routesparse.engine.analyze import analyze_prompt
from routesparse.engine.bulk.asked import Analyst, Asked
from routesparse.engine.config import Policy, RouterConfig, default_segment
from routesparse.engine.errors import InputError
from routesparse.engine.lab import study
from routesparse.engine.lab.generators.tasks import fit_sample
from routesparse.engine.models.files import DEMO
from routesparse.engine.models.load import LoadedModel, load_model
from routesparse.engine.prompts.text import PromptText, read_prompt, tokenize
from routesparse.engine.rows import RunRecord
from routesparse.engine.store.bundle import write_bundle

PROMPTS = paths.DATA / "samples" / "prompts"
SOURCES = {"prose": "prose/test/145.txt", "code": "code/test/networkx-004.txt"}
OTHERS = {"dialog": "dialog/test", "docs": "docs/test"}  # their documents one after another
CALIBRATIONS = {"code": "prose"}
POLICIES: dict[str, Policy] = {"needles": "certified"}  # of prompts that don't take the default
MOST_CHARACTERS_PER_TOKEN = 8
PROBE_BYTES = 3_000_000  # of a sample's heatmaps before compression: a clone should stay small
MANY_PROBE_BYTES = 450_000  # where there are several samples of a domain


def main(argv: list[str] | None = None) -> None:
    """Write one bundle per prompt into --out; bundles made before are removed once the new ones are there."""
    parser = study.parser(__doc__)
    parser.add_argument("--tokens", type=int, default=16_384, help="of a prompt, at most")
    parser.add_argument("--prompts", action="store_true", help="make the prompt files first")
    parser.add_argument(
        "--documents", nargs="+", default=[], help="of the data folder; each begins with its domain"
    )
    arguments = parser.parse_args(argv)
    loaded = load_model(arguments.model)
    if arguments.prompts:
        make_prompts(loaded, arguments.data, arguments.tokens, PROMPTS)
    records = analyse(loaded, arguments) if arguments.model == DEMO else plain(loaded, arguments)
    for old in arguments.out.glob("*/manifest.json"):
        if json.loads(old.read_text())["model"]["id"] == loaded.name:
            shutil.rmtree(old.parent)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for record in records:
        write_bundle(record, arguments.out)


def analyse(loaded: LoadedModel, arguments: argparse.Namespace) -> list[RunRecord]:
    """The prompts' records, in order of name.

    Errors: InputError for a prompt below break-even, and where no unit of any prompt fell back or no alarm went off.
    """
    records = []
    paths_in_order = sorted(PROMPTS.glob("*.txt"))
    # A process's first routed prompt took twice as long as the next ones, so one is routed and forgotten.
    first = tokenize(read_prompt(paths_in_order[0]), loaded.tokenizer, loaded.max_tokens)
    analyze_prompt(first, loaded, RouterConfig(seed=arguments.seed))
    for path in paths_in_order:
        prompt = tokenize(read_prompt(path), loaded.tokenizer, loaded.max_tokens)
        asked = Asked(
            DEMO,
            RouterConfig(seed=arguments.seed, policy=POLICIES.get(path.stem, RouterConfig.policy)),
            own_price=False,
            calibration=CALIBRATIONS.get(path.stem),
            audit="rows",
            measure_dense=True,
            domain=path.stem,
        )
        record = Analyst(asked, loaded, partial(analyze_prompt, probe_bytes=PROBE_BYTES))(prompt)
        run = record.run
        if not run.routed:
            raise InputError(
                f"{path.name} has {run.tokens:,} tokens, below this machine's break-even; pass more --tokens with "
                "--prompts"
            )
        study.note(
            f"{path.stem}: {run.tokens} tokens, density {run.density:.3f}, coverage {run.coverage}, expanded "
            f"{run.expanded_units}, dense by fallback {run.dense_fallback_units}, {run.total_ms / 1e3:.1f} s, dense "
            f"{(run.dense_ms or 0.0) / 1e3:.1f} s"
        )
        records.append(record)
    if not any(record.fallbacks for record in records):
        raise InputError(
            "no unit of any sample fell back, so the page on fallbacks has nothing to show; pass another --seed"
        )
    if not any(record.run.drift_alarm for record in records):
        raise InputError(
            "no sample is unlike its calibration's prompts, so no page shows the alarm; change CALIBRATIONS"
        )
    return records


def plain(loaded: LoadedModel, arguments: argparse.Namespace) -> list[RunRecord]:
    """Records of the first ``--tokens`` tokens of a text of each domain, or of each of ``--documents``, under the
    default settings."""
    sources = [(domain, source) for domain, source in (SOURCES | OTHERS).items()]
    named = bool(arguments.documents)
    if named:
        sources = [(Path(document).parts[0], document) for document in arguments.documents]
    measured = {"audit": "rows", "measure_dense": True, "probe_bytes": PROBE_BYTES // 2}
    if named:
        measured |= {"audit": "none", "keep_text": False, "probe_bytes": MANY_PROBE_BYTES}
    config = RouterConfig(
        seed=arguments.seed, break_even_tokens=0, segment_tokens=default_segment(loaded.on_gpu)
    )
    records: list[RunRecord] = []
    for domain, source in sources:
        path = arguments.data / source
        files = [path] if named else [path, *sorted(path.parent.glob(f"{path.stem[:4]}*"))]
        files = sorted(path.iterdir()) if path.is_dir() else files
        text = "\n\n".join(file.read_text(errors="replace") for file in files)
        text = _cut(loaded, text[: MOST_CHARACTERS_PER_TOKEN * arguments.tokens], arguments.tokens - 1)
        name = path.stem if named else f"{domain}-{arguments.tokens // 1024}k"
        content = PromptText(f"{name}.txt", text, sha256(text.encode()).hexdigest())
        prompt = tokenize(content, loaded.tokenizer, loaded.max_tokens)
        if not records:  # a process's first prompt is slower
            analyze_prompt(prompt, loaded, config)
        records.append(analyze_prompt(prompt, loaded, config, domain=domain, **measured))  # type: ignore[arg-type]
    return records


def _cut(loaded: LoadedModel, text: str, tokens: int) -> str:
    """At the end of the last line that so many tokens hold whole."""
    return text[: text.rfind("\n", 0, _ends(loaded, text)[:tokens][-1]) + 1]


def _ends(loaded: LoadedModel, text: str) -> list[int]:
    """Where each token's text ends."""
    encoded = loaded.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    return [end for _, end in encoded["offset_mapping"]]


def make_prompts(loaded: LoadedModel, data: Path, tokens: int, folder: Path) -> None:
    """Prompt files of at most ``tokens`` tokens, bos included, cut at a line's end."""
    folder.mkdir(parents=True, exist_ok=True)
    budget = tokens - (loaded.tokenizer.bos_token_id is not None)

    for domain, source in SOURCES.items():
        text = (data / source).read_text()[: MOST_CHARACTERS_PER_TOKEN * tokens]
        (folder / f"{domain}.txt").write_text(_cut(loaded, text, budget))
    sample = fit_sample(
        "niah_multikey_2", budget, count_tokens=lambda text: len(_ends(loaded, text)), seed=2_026, index=0
    )
    (folder / "needles.txt").write_text(sample.prompt + sample.answer_prefix)


if __name__ == "__main__":
    study.run(main)
