"""The kernels of a decision, stage by stage on what their naive twins made; on a GPU, or under Triton's interpreter.

Operations choose their kernels by where a tensor lies and whether Triton interprets, so twins and kernels run in
processes of their own: ``*_by_twins`` in the test's, ``*_by_kernels`` where Triton is.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from routesparse.engine.decide import heatmap
from routesparse.engine.decide.decision import LayerSettings
from routesparse.engine.device.copies import Readout
from routesparse.engine.method.attend import head_density, lower
from routesparse.engine.method.families import build_indices, library
from routesparse.engine.method.families._block_ranking import block_scores, log_floors, question_scores
from routesparse.engine.method.probe import describe, draw_shares, place_rows, pool_keys, run_probe
from routesparse.engine.method.records import (
    CERTIFICATE,
    CandidateMass,
    Context,
    Descriptors,
    Probe,
    ProbeRows,
)
from routesparse.engine.method.retained_mass import candidate_mass
from routesparse.engine.method.segments import split
from routesparse.kernels.betting_bound import betting_lower_bound
from tests.engine import oracles

Tensors = dict[str, torch.Tensor]


def _moved(value: Any, device: str) -> Any:
    """A dataclass of tensors (or a dict of them) on a device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: _moved(each, device) for name, each in value.items()}
    if hasattr(value, "__dataclass_fields__"):
        changes = {name: _moved(getattr(value, name), device) for name in value.__dataclass_fields__}
        return replace(value, **changes)
    return value


def steps_by_twins(kind: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """What the naive twins make of one problem: what kernels are given, and what they are compared with."""
    config = replace(oracles.SMALL, **changes)
    inputs = oracles.draw_inputs(3, **kind)
    segment, rows, probe, candidates, indices = oracles.step_one_and_two(inputs, config)
    context = Context(inputs, segment, candidates, probe)
    batch, heads = inputs.q.shape[:2]
    plans = -(-len(candidates) // (batch * heads))
    return {
        "config": config,
        "inputs": inputs,
        "segment": segment,
        "rows": rows,
        "probe": probe,
        "candidates": candidates,
        "indices": indices,
        "masses": candidate_mass(context, indices),
        "keys": pool_keys(context),
        "scores": block_scores(context),
        "question": question_scores(context),
        "seed": oracles.stable_seed(config.seed, 0, segment.index),
        # Every candidate once, those of a plan far apart in the library.
        "choices": [
            torch.tensor(
                [
                    [(plan + plans * (h + heads * b)) % len(candidates) for h in range(heads)]
                    for b in range(batch)
                ]
            )
            for plan in range(plans)
        ],
    }


def small_pieces() -> dict[tuple[Any, str], Any]:
    """Launchers' sizes at which small problems take several chunks of keys and blocks, and pictures are pooled."""
    from routesparse.engine import probe_masks
    from routesparse.kernels import level_maps as level_maps
    from routesparse.kernels import lower_plan as lower_plan
    from routesparse.kernels import recent_marginals as recent_marginals
    from routesparse.kernels import retained_mass as retained_mass

    return {
        (recent_marginals, "RECENT_TILES_PER_PROGRAM"): 2,
        (recent_marginals, "RECENT_PROGRAMS"): 1,
        (level_maps, "SCORE_CHUNK"): 4,
        (level_maps, "SLASH_CHUNK"): 2,
        (level_maps, "READERS_LAUNCH"): (2, 2, 4),
        (level_maps, "BANDS_OF_PROGRAM"): 2,
        (level_maps, "BANDS_COMPARED"): 4,
        (retained_mass, "BLOCKS_AT_ONCE"): 4,
        (retained_mass, "TOTALS_AT_ONCE"): 4,
        (retained_mass, "COLUMNS_PER_PROGRAM"): 64,
        (lower_plan, "BLOCKS_OF_LANE"): 1,
        (heatmap, "MAX_COLUMNS"): 5,
        (probe_masks, "MAX_COLUMNS"): 3,
    }


def steps(twin: dict[str, Any], by_table: bool, device: str) -> Tensors:
    """Every operation of a decision on the twins' results, by whatever serves this process and device.

    by_table: in small pieces, queries and keys by a table of their addresses, as in a replayed graph.
    """
    sizes = small_pieces() if by_table else {}
    before = {place: getattr(*place) for place in sizes}
    for (module, name), size in sizes.items():
        setattr(module, name, size)
    try:
        return {name: x.cpu() for name, x in _steps(twin, by_table, device).items()}
    finally:
        for (module, name), size in before.items():
            setattr(module, name, size)


def _steps(twin: dict[str, Any], by_table: bool, device: str) -> Tensors:
    from routesparse.kernels.level_maps import score_levels

    config, segment, candidates = twin["config"], twin["segment"], twin["candidates"]
    there = _moved(twin["inputs"], device)
    if by_table:
        addresses = torch.tensor([there.q.data_ptr(), there.k.data_ptr()], device=device)
        kept = there  # the blank tensors say how q and k lie, the table where
        there = replace(there, q=torch.zeros_like(kept.q), k=torch.zeros_like(kept.k), table=addresses)
    rows, probe, indices = (_moved(twin[name], device) for name in ("rows", "probe", "indices"))
    found: Tensors = {}

    draws = draw_shares(*there.q.shape[:2], config, twin["seed"])
    placed = place_rows(segment, config, draws.to(device), there.first_keys())
    assert placed.sizes == rows.sizes
    found["placed rows"] = placed.rows
    context = Context(there, segment, candidates, probe)
    probed = run_probe(context, rows, config)
    for name in ("lse", "block_mass", "sink_mass", "column_mass", "band_mass", "finite"):
        found[f"probe {name}"] = getattr(probed, name)
    described = describe(probed)
    for name in ("entropy", "local_band", "agreement"):
        found[f"describe {name}"] = getattr(described, name)
    found["pooled keys"] = pool_keys(context)
    found["block scores"] = block_scores(context).float()

    built = build_indices(context)
    found["a_shape"] = built["a_shape"].levels
    found["slash levels"] = built["vertical_slash"].levels
    found["columns"] = built["vertical_slash"].columns
    found["masses of columns"] = probe.column_mass.gather(-1, found["columns"])
    for pattern in ("a_shape", "vertical_slash"):
        found[f"readers of {pattern}"] = built[pattern].readers
    for pattern in ("block_sparse", "floor"):
        found[f"built {pattern}"] = built[pattern].levels
    budgets = torch.tensor([c.blocks for c in candidates if c.pattern == "block_sparse"], dtype=torch.int32)
    floors = torch.from_numpy(log_floors([c.share for c in candidates if c.pattern == "floor"]))
    geometry = context.geometry
    scores, question = twin["scores"].to(device), twin["question"].to(device)
    binned = score_levels(scores, question, geometry, budgets.to(device), floors.to(device))
    for name, values in zip(("top-k", "floor", "top-k counts", "floor counts"), binned, strict=True):
        found[f"binned {name}"] = values
    for levels, counts in (binned[0::2], binned[1::2]):
        depth = counts.shape[-1]
        listed = torch.stack([(levels <= at).sum(-1) for at in range(depth)], -1).int()
        found[f"counts of {depth} levels that differ from their maps"] = (listed != counts).sum()

    masses = candidate_mass(context, indices)
    for name in ("row_mass", "tiles", "columns", "density"):
        found[f"mass {name}"] = getattr(masses, name)
    pictured = heatmap.draw(probe, segment, indices)
    for name in ("mass", "masks", "positions"):
        found[f"picture {name}"] = pictured.tensors[name]
    # Every fifth candidate: the interpreter is slow.
    certificate = twin["masses"].row_mass[:, :, twin["rows"].slice_of(CERTIFICATE), ::5]
    found["betting bound"] = betting_lower_bound(
        certificate.flatten(0, 1).double().mT.contiguous().to(device), 0.02
    )
    for place, choice in enumerate(twin["choices"]):
        plan = lower(context, indices, choice.to(device))
        found[f"density of plan {place}"] = head_density(plan)
        plan = plan.to("cpu").validate()
        found[f"exact density of plan {place}"] = plan.head_density()
        found[f"plan {place} dense"] = plan.dense_rows
        found[f"plan {place} keys"] = plan.to_mask()
        found[f"plan {place} singles"] = plan.column_count
    return found


def row_order(rows: torch.Tensor, device: str) -> torch.Tensor:
    """Probe rows by position, by the kernel."""
    from routesparse.kernels.retained_mass import by_position

    return by_position(rows.to(device)).cpu()


def random_units(changes: dict[str, Any], width: int, units: tuple[int, int] = (2, 6)) -> dict[str, Any]:
    """Units [B, H] with random masses for steps 3 to 5; width 0: the library's candidates, policy "priced"."""
    by_gate = width > 0
    config = replace(oracles.SMALL, policy="certified" if by_gate else "priced", **changes)
    segment = split(2_000, 2_000, config)[-1]
    candidates = library(segment)
    depths = [width] if by_gate else [len(list(own)) for _, own in groupby(candidates, lambda c: c.pattern)]
    width = sum(depths)
    sizes = (config.recent_rows, config.routing_rows, config.certificate_rows, config.boundary_rows)
    g = torch.Generator().manual_seed(width)
    count = sum(sizes)

    def rising() -> torch.Tensor:
        """Random numbers that rise along each family."""
        drawn = torch.rand(*units, width, generator=g).split(depths, -1)
        return torch.cat([own.sort(-1).values for own in drawn], -1)

    rows = ProbeRows(torch.zeros(*units, count, dtype=torch.int64), sizes)
    share = rising().unsqueeze(2) ** 0.2
    mass = share - 0.05 * torch.rand(*units, count, width, generator=g)
    # The certificate rows of some units know better.
    worse = (
        torch.full((units[0], 1, 1, 1), 0.08)
        if by_gate
        else torch.linspace(0.0, 0.8, units[0]).view(-1, 1, 1, 1)
    )
    mass[:, ::2, rows.slice_of(CERTIFICATE)] -= (worse * torch.rand(*units, 1, width, generator=g))[:, ::2]
    mass[0, :3, ::2] = 0.0
    mass[0, 3:4] = 1.0
    mass = mass.clamp(0.0, 1.0)
    mass[..., -1] = 1.0
    tiles = rising().pow(2).mul(1_200 if by_gate else 6_000).round()
    tiles[1:, 2:] = tiles[1:, 2:].round(decimals=-2)  # candidates that cost the same
    if not by_gate:
        tiles[-1, -1] = 9_000.0  # nothing is cheaper than dense
    columns = torch.randint(0, 50, (*units, width), generator=g).float()
    columns[1:, 2:] = 0.0
    return {
        "config": config,
        "segment": segment,
        "candidates": candidates,
        "rows": rows,
        "masses": CandidateMass(mass, tiles, columns, tiles / 2_000),
        "described": Descriptors(*(torch.rand(units, generator=g) for _ in range(3))),
        "profile": oracles.PROFILE,
    }


def route_by_kernels(case: dict[str, Any], gate: float, device: str) -> tuple[Tensors, torch.Tensor]:
    """Steps 3 to 5 by the route kernel: (what it records but lap times, its choice)."""
    from routesparse.engine.decide import units

    settings = LayerSettings(case["config"], gate, case["profile"])
    assert units.kernel_takes(settings, case["masses"].row_mass.shape[1], None)
    nothing = torch.zeros(())
    probe = Probe(case["rows"], *[nothing] * 8, torch.tensor(True, device=device))
    masses, described = _moved(case["masses"], device), _moved(case["described"], device)
    context = Context(None, case["segment"], case["candidates"], probe)
    choice, packed = units.route_by_kernel(context, masses, described, settings, 3)
    packed.part("laps_us").zero_()
    return {name: torch.from_numpy(x) for name, x in Readout(packed).numpy().items()}, choice.cpu()


def laps(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Lap times by the kernel."""
    from routesparse.kernels.clock import write_laps

    times = torch.tensor([10**18, 10**18 + 1_500, 10**18 + 1_500, 10**18 + 9_007_199_254_740_993])
    found = torch.empty(3, dtype=torch.float64, device=device)
    write_laps.launch(times.to(device), found)
    return times.diff().double() / 1e3, found.cpu()


def block_lse(
    keys: int,
    shape: tuple[int, int, int, int],
    count: int,
    first_keys: list[int] | None,
    shift: int,
    dtype: torch.dtype,
    device: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(in float64, fused) block log-sum-exps of count rows a head; shape: batch, heads, KV heads, head size."""
    from routesparse.kernels.block_lse import block_lse
    from routesparse.kernels.logits import Logits

    batch, heads, kv_heads, head_size = shape
    generator = torch.Generator().manual_seed(0)

    def draw(heads: int, tokens: int) -> torch.Tensor:
        return 2 * torch.randn(batch, tokens, heads, head_size, generator=generator).transpose(1, 2)

    q, k = draw(heads, keys - shift).to(dtype), draw(kv_heads, keys).to(dtype)
    positions = torch.randint(shift, keys, (batch, heads, count), generator=generator)
    positions[:, :, : count // 4] = keys - 1 - torch.arange(count // 4)
    first = torch.tensor(first_keys or [0] * batch)
    queries = q.double().gather(2, (positions - shift).unsqueeze(-1).expand(-1, -1, -1, head_size))
    logits = queries @ k.double().repeat_interleave(heads // kv_heads, 1).mT * head_size**-0.5
    key = torch.arange(keys)
    seen = (key <= positions.unsqueeze(-1)) & (key >= first.view(-1, 1, 1, 1))
    padded = torch.nn.functional.pad(logits.masked_fill(~seen, -torch.inf), (0, -keys % 64), value=-torch.inf)
    wanted = padded.unflatten(-1, (-1, 64)).logsumexp(-1)

    there_q, there_k = q.to(device), k.to(device)
    torch.use_deterministic_algorithms(True)  # fills what torch.empty gives with NaN
    try:
        table = torch.tensor([there_q.data_ptr(), there_k.data_ptr()], device=device)
        blank = torch.zeros_like(there_q), torch.zeros_like(there_k)
        found = block_lse(
            Logits(*blank, head_size**-0.5, table=table),
            positions.to(device),
            None if first_keys is None else first.to(device),
            shift=shift,
            keys=keys,
            block_k=64,
        )
    finally:
        torch.use_deterministic_algorithms(False)
    return wanted.float(), found.cpu()


def _first_of_ties(values: torch.Tensor, count: int, dim: int) -> SimpleNamespace:
    """torch.topk whose ties go to the lowest index; its own go to others on a CPU than on a GPU."""
    ordered = values.sort(dim=dim, descending=True, stable=True)
    return SimpleNamespace(indices=ordered.indices.narrow(dim, 0, count))


@patch.object(torch.Tensor, "topk", _first_of_ties)
def decide(kind: dict[str, Any], policy: str, device: str) -> Tensors:
    """A whole decision, row plan included, by whatever serves this process and device.

    In a small problem most columns have no mass at all; of these every device must read the same ones.
    """
    from routesparse.engine.decide import layer

    inputs = oracles.draw_inputs(3, **kind)
    segment = split(inputs.q.shape[2], inputs.k.shape[2], oracles.SMALL)[-1]
    config = replace(oracles.SMALL, policy=policy, tau=0.5)
    arguments = (segment, 0, LayerSettings(config, 0.6, oracles.PROFILE))
    there = _moved(inputs, device)
    pending = layer.begin(there, *arguments)
    plan = layer.plan_of(pending, there).to("cpu").validate()
    decision = pending.read()
    assert pending.density is not None
    found = {
        "choice": torch.from_numpy(decision.choice),
        "levels": torch.cat(
            [i.levels.cpu().expand(*inputs.q.shape[:2], -1, -1) for i in pending.indices.values()]
        ),
        "density of the plan": pending.density.cpu(),
        "exact density of the plan": plan.head_density(),
        "keys": plan.to_mask(),
        "pictures": torch.stack([torch.from_numpy(one.masks) for one in pending.heatmaps.read()]),
    }
    for name in ("mass", "recent_mass", "disagreement", "density", "kernel_us"):
        found[name] = torch.from_numpy(getattr(decision.scores, name))
    return found
