"""MInference: its online rule and its search against plain loops in float64, and its files. CPU only."""

from __future__ import annotations

import math

import pytest

from routesparse.engine import paths
from routesparse.engine.certification.minference_heads import DEFAULT, HeadBudget, heads_from_json
from routesparse.engine.errors import ConfigError
from routesparse.engine.lab.rivals import minference
from routesparse.engine.lab.rivals.minference import MInference, MInferenceSearch
from routesparse.engine.lab.rivals.rule import RuleRouter

HEADS = (
    HeadBudget("vertical_and_slash", 45, 120),
    HeadBudget("vertical_and_slash", 5, 3),
    HeadBudget("stream_llm", 33, 70),
    HeadBudget("vertical_and_slash", 9_000, 60),
)


def last_sums(view, slow, head: int) -> tuple[list[float], list[float]]:
    """Of the last 64 rows: mass by key and by offset."""
    n, attention = view.tokens, slow.attention(view)[head].tolist()
    column, slash = [0.0] * n, [0.0] * n
    for row in range(n - 64, n):
        for key in range(row + 1):
            column[key] += attention[row][key]
            slash[row - key] += attention[row][key]
    return column, slash


def best(weights: list[float], count: int, forced: int) -> set[int]:
    """The forced first entries before all others; of equal ones the first."""
    return set(
        sorted(range(len(weights)), key=lambda i: (i >= forced, i if i < forced else -weights[i]))[:count]
    )


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_reads_the_columns_and_slashes_of_the_last_queries(view, slow, factor) -> None:
    n = view.tokens
    found = MInference(((), (), (), HEADS), factor)(view)
    reads = []
    for head, (pattern, v, s, _) in enumerate(HEADS):
        v, s = min(n, max(30, round(factor * v))), min(n, max(50, round(factor * s)))
        column, slash = last_sums(view, slow, head)
        columns, slashes = set(range(v)), set(range(s))
        if pattern == "vertical_and_slash":
            columns, slashes = best(column, v, 30), best(slash, s, 100)
        count = int(found.column_count[0, head])
        assert set(found.columns[0, head, :count].tolist()) == columns
        reads.append(slashes)
    expected = slow.tiles(view, lambda head, row, key: row - key in reads[head], view.heads)
    slow.same(view, found, expected)


def test_heads_that_a_file_lacks_read_the_default(make_view) -> None:
    view, rule = make_view(), MInference(default=HeadBudget("vertical_and_slash", 40, 77))
    whole = MInference((((HeadBudget("vertical_and_slash", 40, 77),) * 4),) * 4)
    assert rule(view).blocks.equal(whole(view).blocks)
    assert MInference(((), (), (), HEADS[:1])).default == DEFAULT


def test_search_measures_what_each_entry_keeps(make_view, slow, monkeypatch) -> None:
    grid = (
        HeadBudget("stream_llm", 10, 20),
        HeadBudget("vertical_and_slash", 40, 35),
        HeadBudget("vertical_and_slash", 100, 31),
        HeadBudget("block_sparse", 4, 1),
    )
    monkeypatch.setattr(minference, "GRID", grid)
    view, first = make_view(300, 32, 16, layer=0), 150
    search = MInferenceSearch(first_row=first)
    assert search(view) is None
    n, attention = view.tokens, slow.attention(view).tolist()
    q, k, _ = slow.tensors(view)
    blocks = math.ceil(n / 32)
    for head in range(view.heads):
        column, slash = last_sums(view, slow, head)
        expected = []
        for pattern, v, s, _ in grid:
            columns, slashes = best(column, v, 30), best(slash, s, 30)
            kept = 0.0
            for row in range(first, n):
                query = q[head, row // 32 * 32 : row // 32 * 32 + 32].mean(0)
                scores = [float(query @ k[head, j * 32 : j * 32 + 32].mean(0)) for j in range(row // 32 + 1)]
                chosen = sorted(range(len(scores)), key=lambda j: -scores[j])[: blocks // v]
                for key in range(row + 1):
                    reads = {
                        "stream_llm": key < v or row - key <= s,
                        "vertical_and_slash": key in columns or row - key in slashes,
                        "block_sparse": key // 32 in chosen,
                    }[pattern]
                    kept += attention[head][row][key] * reads
            expected.append(kept / (n - first))
        found = search.masses[0][0][:, head].tolist()
        assert found == pytest.approx(expected, rel=1e-4)
        winner = search.best()[0][head]
        place = expected.index(max(expected))
        sizes = (1_000, 6_096) if grid[place].pattern == "block_sparse" else grid[place][1:3]
        assert winner[:3] == ("vertical_and_slash", *sizes)
        assert winner.score == pytest.approx(max(expected), rel=1e-4)


def test_search_runs_layers_dense_and_takes_the_mean_over_prompts(make_view) -> None:
    search = MInferenceSearch(first_row=100, rows=40)
    for seed in (0, 1):
        router = RuleRouter(search, salt=f"prompt {seed}", counted=True)
        router.start()
        for layer in (0, 1):
            router.attend(make_view(400, seed=seed).inputs, layer=layer)
        assert router.density() == 1.0
    found = search.best()
    assert [len(layer) for layer in found] == [4, 4]
    assert all(0 < budget.score <= 1.0001 and budget.pattern == "vertical_and_slash" for budget in found[0])


def test_search_names_what_it_lacks(make_view) -> None:
    with pytest.raises(ConfigError, match="517 tokens has no row from 2500 on"):
        MInferenceSearch()(make_view())
    with pytest.raises(ConfigError, match="nothing was searched"):
        MInferenceSearch().best()


def test_a_head_that_is_left_out_of_a_file_gets_the_default(tmp_path) -> None:
    (tmp_path / "heads.json").write_text('[{"1": ["vertical_and_slash", 30, 800, 0.5]}, {}]')
    found = heads_from_json(tmp_path / "heads.json")
    assert found == ((DEFAULT, HeadBudget("vertical_and_slash", 30, 800, 0.5)), ())
    assert MInference(found).filled(3, 4) == 11
    for layers, heads in ((1, 4), (3, 1)):
        with pytest.raises(ConfigError, match=f"the model has {layers} of {heads}"):
            MInference(found).filled(layers, heads)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "3",
        '{"source": "somebody", "budgets": []}',
        '[{"0": ["block_sparse", 8, 1, 0.5]}]',
        '[{"0": ["vertical_and_slash", 8]}]',
        '[["vertical_and_slash"]]',
        '[{"0": ["vertical_and_slash", "8", 1, 0.5]}]',
        '[{"0": ["vertical_and_slash", -1, true, 0.5]}]',
        '[{"01": ["vertical_and_slash", 8, 1, 0.5]}]',
        '[{"0": ["vertical_and_slash", 8, 1, 1' + 400 * "0" + "]}]",
        '[{"-1": ["vertical_and_slash", 8, 1, 0.5]}]',
        '[{"999999999": ["vertical_and_slash", 8, 1, 0.5]}]',
    ],
)
def test_a_file_of_another_format_is_refused(tmp_path, text) -> None:
    (tmp_path / "heads.json").write_text(text)
    with pytest.raises(ConfigError, match="holds no MInference heads"):
        heads_from_json(tmp_path / "heads.json")


def test_the_authors_files_are_read() -> None:
    files = sorted((paths.REPOSITORY.parent / "shared" / "data" / "minference_configs").glob("*.json"))
    if not files:
        pytest.skip("the authors' configurations are not in ../shared/data/minference_configs")
    for file in files:
        heads = heads_from_json(file)
        assert len(heads) == 32 and {len(layer) for layer in heads} == {32}
