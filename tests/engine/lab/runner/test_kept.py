"""What a repository keeps of an evaluation: scored without prompts, skipped by later runs, never mixed. CPU."""

import ast
import dataclasses
import json
import math

import pytest

from routesparse.engine import paths
from routesparse.engine.calibrate.row_files import read_lines
from routesparse.engine.errors import InputError
from routesparse.engine.lab.runner import code_hash, predictions
from routesparse.engine.lab.runner.job import Job
from routesparse.engine.lab.runner.kept import keep
from routesparse.engine.lab.runner.score import score
from routesparse.engine.lab.studies.selection import methods

NUMBERS = {"area": 0.25, "select_ms": 1.0, "prefill_ms": 2.0, "attention_ms": 0.5, "gold_tokens": 4}


@pytest.fixture
def job(tmp_path):
    return Job(
        "ruler",
        ("vt", "fwe"),
        (900, 1_000),
        ("window=128",),
        2,
        7,
        "demo",
        tmp_path / "texts",
        tmp_path / "o",
    )


def row(task, length, index, method, right, **others):
    setting = 1.0 if method == "dense" else 128.0
    label = {
        "config_hash": f"hash of {method}",
        "sample_id": f"{length}/{task}/{index}",
        "suite": "ruler",
        "task": task,
        "length": length,
        "index": index,
        "seed": 7,
        "cluster": f"{task}/{index}",
        "method": method,
        "setting": setting,
        "extras": True,
        "prompt_sha256": f"{length}{task}{index}",
        "tokens": length - 9,
        "git_commit": "a" * 40,
        "weights": "w1",
        "device": "a device",
        "processes": 5,
    }
    said = {"index": index, "pred": "ABCDE" if right else "none", "outputs": ["ABCDE"]}
    return {**label, **NUMBERS, "gold_nats": 0.123456789 + (not right), "row": said, **others}


def rows_of(job, tasks=("vt", "fwe"), lengths=(900, 1_000)):
    return [
        row(task, length, index, method, method == "dense" or index == 0)
        for length in lengths
        for task in tasks
        for index in range(2)
        for method in ("dense", "window")
    ]


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))


def test_kept_predictions_are_scored_alone_and_every_later_run_adds_to_them(job):
    """Without prompts, models or the first run's files; the same line is kept once, and none is changed."""
    write(
        job.predictions,
        [*rows_of(job, lengths=(900,)), row("vt", 900, 1, "window", False, failed="no memory")],
    )
    assert keep(job) == (8, 0)
    first = job.kept.read_bytes()
    assert score(job)["suite"][1]["score"] == 50
    job.predictions.unlink()
    alone = score(Job.load(job.out))
    assert [(one["length"], one["method"], one["n"]) for one in alone["suite"]] == [
        (900, "dense", 4), (900, "window", 4)
    ]  # fmt: skip
    assert alone["about"]["processes"] == 5 and "texts" not in (job.out / "job.json").read_text()
    # A second run on another machine, with one line that is there already and another time.
    again = row("vt", 900, 0, "dense", True, prefill_ms=99.0)
    write(job.predictions, [again, *rows_of(job, lengths=(1_000,))])
    write(job.times, [{**row("vt", 900, 0, "window", True), "git_commit": "b" * 40, "prefill_ms": 7.0}])
    assert keep(job) == (16, 1)
    assert job.kept.read_bytes().startswith(first), "a kept line is never written again"
    found = score(job)
    assert {(one["length"], one["n"]) for one in found["suite"]} == {(900, 4), (1_000, 4)}
    dense, window, *_ = found["suite"]
    assert window["predicted_by"] == ["a" * 40] and window["timed_by"] == ["b" * 40]
    assert dense["timed_by"] == [] and window["medians"]["prefill_ms"] == 7.0
    assert keep(job) == (16, 1) and len(list(read_lines(job.kept))) == 16
    kept = {predictions.key(one): one for one in predictions.finished(job)}
    assert kept["hash of dense", "900/vt/0", 7]["prefill_ms"] == 2.0, "the first one stays"


@pytest.mark.parametrize(
    ("file", "field", "value"),
    [
        *(
            ("predictions", name, None)
            for name in ("seed", "index", "cluster", "area", "gold_nats", "prefill_ms")
        ),
        *(
            ("predictions", name, 5)
            for name in ("config_hash", "sample_id", "suite", "method", "row", "device")
        ),
        ("predictions", "length", "900"),
        ("predictions", "extras", 1),
        ("predictions", "setting", float("nan")),
        ("times", "select_ms", "fast"),
        ("times", "config_hash", []),
    ],
)
def test_a_row_of_another_kind_is_named_by_its_file_number_and_field(job, file, field, value):
    write(job.predictions, rows_of(job))
    keep(job)
    write(
        getattr(job, file),
        [row("vt", 900, 0, "dense", True), row("vt", 900, 1, "window", True) | {field: value}],
    )
    with pytest.raises(InputError, match=rf"line 2 of .*{file}\.jsonl: {field} is .*; remove it"):
        score(job)


def test_of_two_kept_times_the_ones_of_the_last_sitting_count(job):
    """Dense's configuration outlives the rivals' code, and times of two sittings compare nothing."""
    write(job.predictions, rows_of(job, ("vt",), (900,)))
    write(job.times, [row("vt", 900, 0, "dense", True, prefill_ms=5.0)])
    assert keep(job) == (4, 1)
    first = job.kept_times.read_bytes()
    later = row("vt", 900, 0, "dense", True, prefill_ms=8.0, git_commit="b" * 40)
    write(job.times, [later, row("vt", 900, 0, "window", True, prefill_ms=4.0, git_commit="b" * 40)])
    assert keep(job) == (4, 3) and keep(job) == (4, 3)
    assert job.kept_times.read_bytes().startswith(first), "a kept line is never written again"
    job.times.unlink()
    assert [one["medians"]["prefill_ms"] for one in score(job)["suite"]] == [8.0, 4.0]
    assert score(job)["suite"][0]["timed_by"] == ["b" * 40]


def test_splits_of_pg19_are_one_set_of_books(job):
    """Four books each would be few clusters of two kinds; eight books are eight."""
    books = dataclasses.replace(job, suite="pg19", tasks=("test", "validation"), lengths=(900,), n=4)
    sums = {"tokens": 900, "words": 600, "bytes": 3_000, "last_nll": 30.0, "last_tokens": 10}
    write(
        books.predictions,
        [
            row(split, 900, index, method, True, suite="pg19", cluster=f"{split} {index}")
            | {"row": {**sums, "nll": 3_000.0 + 60 * index + (6 if method == "window" else 0)}}
            for split in books.tasks
            for index in range(4)
            for method in ("dense", "window")
        ],
    )
    keep(books)
    dense, window = score(books)["suite"]
    assert (window["n"], window["clusters"], window["few_clusters"]) == (8, 8, False)
    assert window["word_perplexity_ratio"]["value"] == pytest.approx(math.exp(6 / 600))
    assert dense["measures"]["word_perplexity"] == pytest.approx(math.exp(3_090 / 600))


def test_other_weights_prompts_and_configurations_never_mix_silently(job, capsys):
    write(job.predictions, rows_of(job, lengths=(900,)))
    keep(job)
    write(job.predictions, [row("vt", 900, 0, "window", True, prompt_sha256="another", config_hash="x")])
    with pytest.raises(InputError, match="900/vt/0 of seed 7 was predicted from two different prompts"):
        keep(job)
    newer = [row("vt", 900, index, "window", True, config_hash="newer") for index in range(2)]
    write(job.predictions, newer)
    keep(job)
    dense, window = score(job)["suite"]
    assert (dense["n"], window["n"], window["score"]) == (4, 2, 100)
    assert (
        "4 predictions of window=128 at 900 tokens are of an older configuration" in capsys.readouterr().err
    )
    write(job.predictions, [{**one, "config_hash": "newest", "weights": "w2"} for one in newer])
    keep(job)
    with pytest.raises(InputError, match=r"holds predictions of different weights \(w1, w2\)"):
        score(job)


def test_only_what_the_job_asks_for_is_scored(job):
    write(job.predictions, rows_of(job))
    keep(job)
    fewer = dataclasses.replace(job, tasks=("fwe",), lengths=(900,), n=1)
    assert [(one["task"], one["n"]) for one in score(fewer)["tasks"]] == [("fwe", 1), ("fwe", 1)]


def test_a_broken_kept_file_is_named(job):
    write(job.predictions, rows_of(job))
    keep(job)
    job.kept.write_bytes(job.kept.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"kept\.jsonl\.gz can't be read"):
        score(job)


def test_code_that_decides_changes_a_hash_and_no_other_code():
    """A rule's own module and what it imports, kernels, and our decisions; another rule's does not."""
    asked = (
        ("dense", 1),
        ("dense_kernel", 1),
        ("routesparse", 0.5),
        ("window", 128),
        ("global_router", 0.9),
        ("xattention", 0.9),
    )
    files = {
        on_gpu: [code_hash.code_of(methods.find(*one), on_gpu) for one in asked] for on_gpu in (True, False)
    }
    for file, counts in {
        "engine/lab/rivals/static_a_shape.py": [0, 0, 0, 1, 1, 0],
        "engine/lab/rivals/xattention.py": [0, 0, 0, 0, 0, 1],
        "engine/method/attend.py": [1] * 6,
        "engine/decide/layer.py": [0, 0, 1, 0, 0, 0],
        "kernels/rules.py": [0, 1, 1, 1, 1, 1],
        "engine/record/trace.py": [0] * 6,
    }.items():
        for on_gpu in (True, False):
            assert [file in found for found in files[on_gpu]] == counts, file
    cpu = "kernels/attention/torch_cpu.py"
    assert not any(cpu in found for found in files[True])
    assert [cpu in found for found in files[False]] == [0, 1, 1, 1, 1, 1]
    assert len({code_hash.code_hash(methods.find(*one), True) for one in asked}) == len(asked)


def test_what_a_gpus_hash_leaves_out_is_reached_through_its_package_alone():
    """The package of the attention chooses; nothing else imports from the CPU's."""

    def asked(path):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("routesparse.kernels"):
                yield from [*node.module.split("."), *(alias.name for alias in node.names)]

    importing = {
        path.relative_to(paths.REPOSITORY).as_posix()
        for folder in ("kernels", "engine", "app")
        for path in (paths.REPOSITORY / folder).rglob("*.py")
        if any(name.startswith(code_hash.CPU_ALONE) for name in asked(path))
        and not path.name.startswith(code_hash.CPU_ALONE)
    }
    assert importing == {"kernels/attention/__init__.py"}
