"""MInference (arXiv 2407.02490): each head's budgets come from an offline search, the indices from the last queries.

*Offline.* For each entry of a grid the search measures the share of dense mass that it keeps in the rows from 2,500 on
of calibration prompts. The entries: A-shape (100 first, 800 last keys), vertical-slash with (30, 800), (100, 750),
(500, 700) and (3500, 100) columns and slashes, and 1/8 of the pooled 32 x 32 blocks. The best one in the mean over
prompts wins; then A-shape becomes vertical-slash of the same sizes, and blocks become vertical-slash (1000, 6096).
``MInferenceSearch`` is that search, as a rule under which layers run dense:

    search = MInferenceSearch()
    with routed_by(model, RuleRouter(search)): model(ids)
    rule = MInference(search.best())

*Online.* The exact attention of the last 64 queries is summed by key and by offset; a head reads its max(v, 30) best
columns (the first 30 before all others) and its max(s, 50) best slashes (the last 100 offsets before all others; of
equal ones the nearest). ``factor`` enlarges both budgets.

Budgets of the authors' files are read by engine/certification/minference_heads.py; ``MInference.filled`` counts heads
that a file leaves out.

Departures: slashes become the KV blocks of 128 x 64 that hold one of their pairs (theirs are 64 x 64 and start
anywhere); a short last block is pooled over its own tokens; the search may look at sampled rows only (``rows``). Where
s is below 100, theirs takes any s of the 100 forced offsets, ours the nearest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from routesparse.engine.certification.minference_heads import DEFAULT, HeadBudget, Heads
from routesparse.engine.errors import ConfigError
from routesparse.engine.lab.rivals.pieces import MOST_LOGITS, last_row_sums, ranks, tiles_of_offsets
from routesparse.engine.lab.rivals.rule import Selection, View, token_means
from routesparse.engine.seeds import stable_seed

LAST_ROWS = 64
POOLED = 32  # tokens of a block in the search


GRID = (
    HeadBudget("stream_llm", 100, 800),
    HeadBudget("vertical_and_slash", 30, 800),
    HeadBudget("vertical_and_slash", 100, 750),
    HeadBudget("vertical_and_slash", 500, 700),
    HeadBudget("vertical_and_slash", 3_500, 100),
    HeadBudget("block_sparse", 8, 1),  # one block in 8
)


@dataclass(frozen=True)
class MInference:
    """See the module."""

    heads: Heads = ()
    factor: float = 1.0  # enlarges both budgets
    default: HeadBudget = DEFAULT  # of layers and heads that ``heads`` lacks
    least_columns: int = 30
    least_slashes: int = 50
    first_columns: int = 30  # in every head
    last_slashes: int = 100

    def __call__(self, view: View) -> Selection:
        found = self.heads[view.layer] if view.layer < len(self.heads) else ()
        budgets = [found[h] if h < len(found) else self.default for h in range(view.heads)]
        streams = torch.tensor([b.pattern == "stream_llm" for b in budgets], device=view.device).view(-1, 1)
        column, slash = last_row_sums(view, LAST_ROWS)
        column[..., : self.first_columns] = torch.inf
        slash[..., : self.last_slashes] = torch.inf
        # The first keys and the last ones: every weight is the same, and of equal ones the first ranks higher.
        column, slash = column.masked_fill(streams, 0.0), slash.masked_fill(streams, 0.0)

        columns = [self._enlarged(b.columns, self.least_columns, view.tokens) for b in budgets]
        slashes = [self._enlarged(b.slashes, self.least_slashes, view.tokens) for b in budgets]
        offsets = ranks(slash) < torch.tensor(slashes, device=view.device).view(-1, 1)
        order = column.argsort(dim=-1, descending=True, stable=True)
        return Selection(
            tiles_of_offsets(view, offsets),
            order[..., : max(columns)],
            torch.tensor([columns], device=view.device),
        )

    def filled(self, layers: int, heads: int) -> int:
        """How many heads of a model with so many layers of so many heads get the default.

        Errors: ConfigError where there are budgets for layers or heads that the model does not have.
        """
        most = max(map(len, self.heads), default=0)
        if len(self.heads) > layers or most > heads:
            raise ConfigError(
                f"these MInference heads are of {len(self.heads)} layers of up to {most} heads, the model has {layers} "
                f"of {heads}; pass those of this model"
            )
        return layers * heads - sum(budget is not DEFAULT for layer in self.heads for budget in layer)

    def _enlarged(self, budget: int, least: int, tokens: int) -> int:
        return min(tokens, max(least, round(self.factor * budget)))


@dataclass
class MInferenceSearch:
    """The offline search: a rule under which every layer runs dense while its heads' kept masses add up."""

    first_row: int = 2_500  # rows before it do not count
    rows: int | None = None  # sampled rows a layer and prompt; None: all
    masses: dict[int, list[torch.Tensor]] = field(default_factory=dict)  # by layer, one a prompt

    def __call__(self, view: View) -> None:
        """Add the mass that each entry of GRID keeps of this prompt's layer."""
        if view.tokens <= self.first_row:
            raise ConfigError(
                f"a calibration prompt of {view.tokens} tokens has no row from {self.first_row} on; "
                "use a longer one or lower first_row"
            )
        rows = torch.arange(self.first_row, view.tokens, device=view.device)
        if self.rows is not None and self.rows < len(rows):
            generator = torch.Generator().manual_seed(stable_seed("minference", view.salt, view.layer))
            rows = rows[
                torch.randperm(len(rows), generator=generator)[: self.rows].sort().values.to(view.device)
            ]
        self.masses.setdefault(view.layer, []).append(self._kept(view, rows).cpu())

    def best(self) -> Heads:
        """The winners by layer and head. Raises ConfigError before any prompt ran."""
        if not self.masses:
            raise ConfigError("nothing was searched; run the model on a calibration prompt first")
        means = (torch.stack(self.masses[layer]).mean(0) for layer in range(max(self.masses) + 1))
        return tuple(tuple(_winner(head) for head in mean.T.tolist()) for mean in means)

    def _kept(self, view: View, rows: torch.Tensor) -> torch.Tensor:
        """Mean mass over the rows that each entry keeps of each head: float64 [len(GRID), H]."""
        column, slash = last_row_sums(view, LAST_ROWS)
        column[..., :30] = torch.inf
        slash[..., :30] = torch.inf
        column_rank, slash_rank = ranks(column), ranks(slash)
        query, pooled = token_means(view.inputs.q, POOLED), token_means(view.inputs.k, POOLED)
        pooled = pooled.repeat_interleave(view.inputs.groups, 1).transpose(-1, -2)
        key = torch.arange(view.tokens, device=view.device)
        total = torch.zeros(len(GRID), view.heads, dtype=torch.float64, device=view.device)
        for part in rows.split(max(1, MOST_LOGITS // (view.heads * view.tokens))):
            mass = view.row_softmax(part)
            offset = (part.view(-1, 1) - key).clamp_min(0)
            for place, (pattern, columns, slashes, _) in enumerate(GRID):
                if pattern == "stream_llm":
                    # Upstream keeps the diagonals 0 to ``slashes``, one more than it says.
                    kept = (key < columns) | (offset <= slashes)
                elif pattern == "block_sparse":
                    scores = query[:, :, part // POOLED] @ pooled
                    future = torch.arange(scores.shape[-1], device=view.device) > (part // POOLED).view(-1, 1)
                    best = ranks(scores.masked_fill_(future, -torch.inf)) < scores.shape[-1] // columns
                    kept = best.repeat_interleave(POOLED, -1)[..., : view.tokens]
                else:
                    kept = (column_rank < columns).unsqueeze(2) | (slash_rank < slashes)[..., offset]
                total[place] += (mass * kept).sum(-1).double().sum(2)[0]
        return total / len(rows)


def _winner(masses: Sequence[float]) -> HeadBudget:
    """The first best entry of the grid, as the vertical-slash head that it is served as."""
    place = max(range(len(GRID)), key=lambda i: masses[i])
    best = DEFAULT if GRID[place].pattern == "block_sparse" else GRID[place]
    return HeadBudget("vertical_and_slash", best.columns, best.slashes, masses[place])
