"""Our suites as the harness sees them: the YAML names every task as the code has it, prompts and scores are ours."""

import json
from pathlib import Path

import pytest
import yaml

from routesparse.engine.lab.harness import lm_eval_tasks
from routesparse.engine.lab.runner.job import Job
from routesparse.engine.lab.runner.prepare import all_prepared, prepare
from routesparse.engine.lab.suites import ruler, stories
from routesparse.engine.progress import no_progress

ROOT = Path(__file__).resolve().parents[4]
INCLUDE = ROOT / "engine" / "lab" / "harness" / "lm_eval_include"
NEW_TOKENS = {
    "ruler": ruler.NEW_TOKENS,
    "stories": dict.fromkeys(stories.SUITE.tasks, stories.NEW_TOKENS),
}


@pytest.fixture
def asked(tmp_path):
    """What the harness passes: the task's own fields, --metadata, and the model's arguments."""
    (tmp_path / "prose" / "test").mkdir(parents=True)
    prose = (ROOT / "data" / "samples" / "prompts" / "prose.txt").read_text()
    (tmp_path / "prose" / "test" / "145.txt").write_text(prose)
    return {
        **{"suite": "ruler", "task": "niah_multivalue", "length": 1_300, "n": 2, "prompt_seed": 4},
        **{"data": str(tmp_path), "out": str(tmp_path / "out")},
        # Of the model: its seed places random rows and is not that of the prompts.
        **{
            "pretrained": "demo",
            "price": 0.5,
            "seed": 9,
            "version": 1,
            "config_source": "niah_multivalue.yaml",
        },
    }


@pytest.mark.parametrize("suite", NEW_TOKENS)
def test_every_task_has_its_yaml_with_the_suite_s_limit_of_new_tokens(suite):
    tasks = {}
    for path in (INCLUDE / suite).glob("*.yaml"):
        read = yaml.safe_load(path.read_text())
        if "group" in read:
            members = read["task"]
            continue
        assert read["include"] == "../shared_yaml" and read["task"] == f"routesparse_{suite}_{path.stem}"
        assert read["dataset_kwargs"] == {"suite": suite, "task": path.stem}
        assert read["generation_kwargs"] == {
            "max_gen_toks": NEW_TOKENS[suite][path.stem],
            "do_sample": False,
            "until": [],
        }
        tasks[path.stem] = read["task"]
    assert sorted(tasks) == sorted(NEW_TOKENS[suite])
    assert sorted(members) == sorted(tasks.values())


def test_the_functions_that_the_yaml_names_exist():
    named = [
        line.split()[-1] for line in (INCLUDE / "shared_yaml").read_text().splitlines() if "!function" in line
    ]
    assert {name.rpartition(".")[0] for name in named} == {lm_eval_tasks.__name__}
    assert all(callable(getattr(lm_eval_tasks, name.rpartition(".")[2])) for name in named)


def test_prompts_are_those_of_evaluate(asked):
    job = Job(
        "ruler",
        ("niah_multivalue",),
        (1_300,),
        ("dense",),
        2,
        4,
        "demo",
        Path(asked["data"]),
        Path(asked["out"]),
    )
    prepare(job, no_progress)
    file = job.prompts(1_300, "niah_multivalue")
    before = file.stat().st_mtime_ns
    documents = lm_eval_tasks.documents(**asked)
    assert file.stat().st_mtime_ns == before
    prepared = list(all_prepared(job))
    assert [d["prompt"] + d["answer_prefix"] for d in documents] == [p.text for p in prepared]
    assert [d["prompt_sha256"] for d in documents] == [p.sha256 for p in prepared]
    alone = lm_eval_tasks.documents(**{**asked, "out": asked["out"] + "2"})
    assert alone == documents


def test_answers_get_the_score_that_routesparse_score_gives_them(printed, asked, tmp_path):
    documents = lm_eval_tasks.documents(**asked)
    golds = [json.loads(document["example"])["gold"] for document in documents]
    said = [", ".join(golds[0][:3]), golds[1][0].upper()]
    values = [
        lm_eval_tasks.process_results(document, [text])
        for document, text in zip(documents, said, strict=True)
    ]
    assert values == [{"points": 0.75}, {"points": 0.25}]
    points = lm_eval_tasks.points([value["points"] for value in values])
    file = tmp_path / "said.jsonl"
    rows = [{"index": i, "pred": s, "outputs": g} for i, (s, g) in enumerate(zip(said, golds, strict=True))]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = printed("score", "ruler", "niah_multivalue", file, "--json")
    assert json.loads(out)["score"] == points == 50.0
