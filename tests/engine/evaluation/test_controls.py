"""Negative controls on the bundled model, CPU, under 2,000 tokens: a window alone fails what needs the whole prompt.

The window comes without what our own plans always read (``extras=False``): with its last 128 rows dense, any plan
answers a question of a single hop, so such tasks say nothing about the body of a plan; a test below holds that, too.
Stories have no control here, because the bundled model does not answer them with dense attention either; their test
that evidence lies far before the question is in test_suites.py, and the control by model is

    routesparse evaluate stories --methods window=128 --no-extras
"""

from pathlib import Path

import pytest

from routesparse.engine.evaluation.runner import predict as predicting
from routesparse.engine.evaluation.runner.job import Job
from routesparse.engine.evaluation.runner.prepare import all_prepared, prepare
from routesparse.engine.evaluation.studies.selection import methods
from routesparse.engine.evaluation.studies.selection.measure import Bench
from routesparse.engine.evaluation.suites.registry import find
from routesparse.engine.models.load import load_model
from routesparse.engine.progress import no_progress

DENSE, WINDOW = methods.find("dense", 1), methods.find("window", 128)
PROSE = Path(__file__).resolve().parents[3] / "data" / "samples" / "prompts" / "prose.txt"
# suite, task, tokens, which prompt
RETRIEVAL = [
    ("ruler", "niah_multikey_2", 1_300, 1),
    ("infinitebench", "passkey", 1_400, 1),
    ("stress", "stress_edges", 1_500, 0),
]


@pytest.fixture(scope="module")
def loaded():
    return load_model("demo", device="cpu")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The bundled prose sample as the only book."""
    made = tmp_path_factory.mktemp("data")
    (made / "prose" / "test").mkdir(parents=True)
    (made / "prose" / "test" / "145.txt").write_text(PROSE.read_text())
    return made


def measured(loaded, data, out, suite, task, length, index, method, extras):
    job = Job(suite, (task,), (length,), ("window=128",), index + 1, 6, "demo", data, out, extras)
    prepare(job, no_progress)
    prepared = all_prepared(job)[index]
    row = predicting._measured(Bench(loaded, extras=extras), job, method, prepared, loaded)["row"]
    return find(suite).score(task, [row]).score


@pytest.mark.parametrize(("suite", "task", "length", "index"), RETRIEVAL)
def test_a_window_alone_finds_nothing_that_dense_finds(loaded, data, tmp_path, suite, task, length, index):
    def points(method):
        return measured(loaded, data, tmp_path, suite, task, length, index, method, False)

    assert (points(DENSE), points(WINDOW)) == (100, 0)


def test_dense_last_rows_alone_answer_a_question_of_one_hop(loaded, data, tmp_path):
    assert measured(loaded, data, tmp_path, *RETRIEVAL[0], WINDOW, True) == 100


def test_a_window_alone_makes_a_book_more_surprising(loaded, data, tmp_path):
    dense, window = (
        measured(loaded, data, tmp_path, "pg19", "test", 1_500, 0, method, False)
        for method in (DENSE, WINDOW)
    )
    assert window > 1.05 * dense
