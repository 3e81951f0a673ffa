"""The fused path beside its torch twins, stage by stage on the same inputs; on a GPU, or under Triton's interpreter.

``compare`` runs in a process of its own where Triton interprets, so it returns plain tensors by name.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

Pair = tuple[torch.Tensor, torch.Tensor]


def _oracle():
    if "engine_oracles" not in sys.modules:
        path = Path(__file__).with_name("oracles.py")
        spec = importlib.util.spec_from_file_location("engine_oracles", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules["engine_oracles"] = module
        spec.loader.exec_module(module)
    return sys.modules["engine_oracles"]


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


def compare(kind: dict[str, Any], changes: dict[str, Any], by_table: bool, device: str) -> dict[str, Pair]:
    """(twin on the CPU, fused) by name, both on the CPU."""
    from routesparse.engine.decide import heatmap
    from routesparse.engine.device import device_path
    from routesparse.engine.method import descriptors
    from routesparse.engine.method import retained_mass as coverage
    from routesparse.engine.method import row_plan as execute
    from routesparse.engine.method.certificate_device import betting_lower_bound
    from routesparse.engine.method.families import build_indices
    from routesparse.engine.method.families.block_sparse import pooled_scores
    from routesparse.engine.method.families.level_map import diagonal_and_sink
    from routesparse.engine.method.probe import pool_keys, run_probe
    from routesparse.engine.method.probe_rows import CERTIFICATE, draw_shares, place_rows
    from routesparse.engine.record import masks
    from routesparse.kernels import cover_triton, index_triton, lower_triton, probe_triton

    oracle = _oracle()
    config = replace(oracle.SMALL, **changes)
    inputs = oracle.draw_inputs(3, **kind)
    segment, rows, probe, candidates, indices = oracle.step_one_and_two(inputs, config)
    covered = coverage.cover(inputs, segment, probe, indices, candidates)
    described = descriptors.describe(probe, segment)
    keys = pool_keys(inputs, segment)
    forced, causal = diagonal_and_sink(segment, inputs)
    scores = pooled_scores(inputs, segment, forced, causal)
    choices = [
        torch.tensor([[(shift + 3 * h + b) % len(candidates) for h in range(inputs.q.shape[1])]
                      for b in range(inputs.q.shape[0])])
        for shift in range(0, len(candidates), 4)
    ]  # fmt: skip
    plans = [
        execute.lower(segment, indices, candidates, choice, inputs.key_start, None, None)
        for choice in choices
    ]

    pairs: dict[str, Pair] = {}
    on_cuda = device_path.fused
    device_path.fused = lambda _: True
    sizes = {
        (probe_triton, "RECENT_TILES_PER_PROGRAM"): 2,
        (index_triton, "SCORE_CHUNK"): 4,
        (index_triton, "SLASH_CHUNK"): 2,
        (cover_triton, "BLOCKS_AT_ONCE"): 4,
        (cover_triton, "TOTALS_AT_ONCE"): 4,
        (cover_triton, "COLUMNS_PER_PROGRAM"): 64,
        (lower_triton, "BLOCKS_OF_LANE"): 1,
        (heatmap, "MAX_COLUMNS"): 5,
        (masks, "MAX_COLUMNS"): 3,
    }
    before = {place: getattr(*place) for place in sizes}
    if by_table:  # several chunks of keys and blocks, and pictures that are pooled
        for (module, name), size in sizes.items():
            setattr(module, name, size)
    try:
        real = _moved(inputs, device)
        # The arguments say how q and k lie, the table where: as in a replayed graph.
        addresses = torch.tensor([real.q.data_ptr(), real.k.data_ptr()], device=device)
        blank = replace(real, q=torch.zeros_like(real.q), k=torch.zeros_like(real.k), table=addresses)
        there = blank if by_table else real
        fused_rows, twin_probe = _moved(rows, device), _moved(probe, device)
        twin_indices = _moved(indices, device)
        draws = draw_shares(*inputs.q.shape[:2], config, oracle.stable_seed(config.seed, 0, segment.index))
        placed = place_rows(segment, config, draws.to(device), there.first_keys())
        pairs["placed rows"] = rows.rows, placed.rows
        assert placed.sizes == rows.sizes
        found = run_probe(there, segment, fused_rows, config)
        for name in ("lse", "block_mass", "sink_mass", "column_mass", "band_mass", "finite"):
            pairs[f"probe {name}"] = getattr(probe, name), getattr(found, name)
        pairs["pooled keys"] = keys, pool_keys(there, segment)
        built = build_indices(there, segment, twin_probe, candidates)
        pairs["a_shape"] = indices["a_shape"].levels, built["a_shape"].levels
        pairs["slash levels"] = indices["vertical_slash"].levels, built["vertical_slash"].levels
        pairs["columns"] = indices["vertical_slash"].columns, built["vertical_slash"].columns
        for pattern in ("block_sparse", "block_top_p"):
            pairs[pattern] = indices[pattern].levels, built[pattern].levels
        budgets = torch.tensor(
            [c.blocks for c in candidates if c.pattern == "block_sparse"], dtype=torch.int32
        )
        shares = torch.tensor([c.share for c in candidates if c.pattern == "block_top_p"])
        plain = scores.masked_fill(scores.abs() == torch.inf, 0.0)
        binned = index_triton.score_levels(
            plain.to(device), segment.place(there.first_keys()), budgets.to(device), shares.to(device), None
        )  # fmt: skip
        for depth, levels, counts in zip((len(budgets), len(shares)), binned[:2], binned[2:], strict=True):
            name = f"row counts of {depth} levels"
            pairs[name] = torch.stack([(levels <= at).sum(-1) for at in range(depth)], -1).int(), counts
        wanted = binned_levels(scores, forced, causal, budgets, shares)
        pairs["binned top-k"], pairs["binned top-p"] = zip(wanted, binned[:2], strict=True)
        by_position = rows.rows.argsort(dim=-1, stable=True).int()
        pairs["row order"] = by_position, cover_triton.by_position(fused_rows.rows)
        scored = coverage.cover(there, segment, twin_probe, twin_indices, candidates)
        for name in ("row_mass", "tiles", "columns", "density"):
            pairs[f"cover {name}"] = getattr(covered, name), getattr(scored, name)
        seen = descriptors.describe(found, segment)
        for name in ("entropy", "local_band", "agreement"):
            pairs[f"describe {name}"] = getattr(described, name), getattr(seen, name)
        device_path.fused = lambda _: False
        drawn = heatmap.draw(probe, segment, indices)
        # Every fifth candidate: the interpreter is slow.
        rows = covered.row_mass[:, :, rows.slice_of(CERTIFICATE), ::5].flatten(0, 1).double().mT
        bound = betting_lower_bound(rows, 0.02)
        device_path.fused = lambda _: True
        pictured = heatmap.draw(twin_probe, segment, twin_indices)
        for name in ("mass", "masks", "positions"):
            pairs[f"picture {name}"] = drawn.tensors[name], pictured.tensors[name]
        pairs["betting bound"] = bound, betting_lower_bound(rows.to(device), 0.02)
        capacity = lower_triton.LISTED_SHARE * segment.key_blocks
        for place, (choice, plan) in enumerate(zip(choices, plans, strict=True)):
            lowered = execute.lower(
                segment, twin_indices, candidates, choice.to(device), there.key_start, None, None
            )  # fmt: skip
            density = execute.head_density(lowered)
            lowered = lowered.to("cpu").validate()
            pairs[f"density of plan {place}"] = lowered.head_density(), density
            # A row that lists too many blocks is dense by right; nothing else may be.
            full = plan.block_count > capacity
            pairs[f"plan {place} dense"] = plan.dense_rows | full, lowered.dense_rows
            rows_of = (full | plan.dense_rows).repeat_interleave(plan.block_q, 2)[:, :, : plan.n_q, None]
            pairs[f"plan {place} keys"] = plan.to_mask() & ~rows_of, lowered.to_mask() & ~rows_of
            held = torch.where(full, 0, plan.column_count)
            pairs[f"plan {place} singles"] = held, lowered.column_count
    finally:
        device_path.fused = on_cuda
        for (module, name), size in before.items():
            setattr(module, name, size)
    return {name: (twin.cpu(), other.cpu()) for name, (twin, other) in pairs.items()}


def binned_levels(
    scores: torch.Tensor,
    forced: torch.Tensor,
    causal: torch.Tensor,
    budgets: torch.Tensor,
    shares: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """score_levels' rule by sorting nothing and binning everything: float32, a row at a time."""
    from routesparse.kernels.index_triton import SCORE_BINS

    top_k = torch.full(scores.shape, 255, dtype=torch.uint8)
    top_p = top_k.clone()
    free, forced = (causal & ~forced).expand_as(scores), forced.expand_as(scores)
    for b, h, m in itertools.product(*(range(size) for size in scores.shape[:3])):
        row, open_ = scores[b, h, m], free[b, h, m]
        top_k[b, h, m, forced[b, h, m]] = top_p[b, h, m, forced[b, h, m]] = 0
        if not open_.any():
            continue
        values = row[open_]
        width = (values.max() - values.min()).clamp_min(1e-20) / SCORE_BINS
        # Bins from the best score down.
        place = ((values.max() - values) * (1.0 / width)).int().clamp_max(SCORE_BINS - 1)
        count = torch.bincount(place, minlength=SCORE_BINS).float()
        weight = count * ((torch.arange(SCORE_BINS) + 0.5) * -width).exp()
        at_least = count.cumsum(0)
        better = (weight.cumsum(0) - weight) / weight.sum()
        taken = int(forced[b, h, m].sum())
        for levels, misses, depth in (
            (top_k, at_least.unsqueeze(1) > budgets - taken, len(budgets)),
            (top_p, better.unsqueeze(1) >= shares, len(shares)),
        ):
            found = misses.sum(1)[place]
            levels[b, h, m, open_] = torch.where(found == depth, 255, found).to(torch.uint8)
    return top_k, top_p


def route(changes: dict[str, Any], gate: float, width: int, device: str) -> dict[str, Pair]:
    """Steps 3 to 5 of units with random masses: (tensor operations on the kernel's means, the kernel) by name.

    The means are sums in another order, so they are compared on their own.
    """
    from routesparse.engine.decide import layer, unit_route
    from routesparse.engine.decide.decision import DeviceScores
    from routesparse.engine.device import device_path
    from routesparse.engine.device.copies import Readout
    from routesparse.engine.device.timing import Stamps
    from routesparse.engine.method import fallback, router_device
    from routesparse.engine.method.descriptors import Descriptors
    from routesparse.engine.method.probe import Probe
    from routesparse.engine.method.probe_rows import CERTIFICATE, ProbeRows
    from routesparse.engine.method.retained_mass import Coverage
    from routesparse.engine.method.segments import split

    oracle = _oracle()
    config = replace(oracle.SMALL, **changes)
    segment = split(2_000, 2_000, config)[-1]
    sizes = (config.recent_rows, config.routing_rows, config.certificate_rows, config.boundary_rows)
    g = torch.Generator().manual_seed(width)
    units, count = (2, 6), sum(sizes)
    rows = ProbeRows(torch.zeros(*units, count, dtype=torch.int64), sizes)
    share = torch.rand(*units, 1, width, generator=g).sort(-1).values ** 0.2
    mass = share - 0.05 * torch.rand(*units, count, width, generator=g)
    # The certificate rows of some units know better.
    mass[:, ::2, rows.slice_of(CERTIFICATE)] -= 0.08 * torch.rand(*units, 1, width, generator=g)[:, ::2]
    mass[0, :3, ::2] = 0.0
    mass[0, 3] = 1.0
    mass = mass.clamp(0.0, 1.0)
    mass[..., -1] = 1.0
    tiles = torch.rand(*units, width, generator=g).sort(-1).values.pow(2).mul(1_200).round()
    tiles[1, 2:] = tiles[1, 2:].round(decimals=-2)  # candidates that cost the same
    columns = torch.randint(0, 50, (*units, width), generator=g).float()
    columns[1, 2:] = 0.0
    covered = Coverage(mass, tiles, columns, tiles / 2_000)
    described = Descriptors(*(torch.rand(units, generator=g) for _ in range(3)))
    nothing = torch.zeros(())
    probe = Probe(rows, nothing, nothing, nothing, nothing, nothing, torch.tensor(True))
    stamps = Stamps(torch.device("cpu"), laps=3)
    stamps.lap()
    stamps.lap()
    arguments = (config, gate, oracle.PROFILE)
    _, packed = layer.route_by_tensors(segment, probe, covered, described, *arguments, None, None, stamps)
    twin = Readout(packed).numpy()

    on_cuda = device_path.fused
    try:
        device_path.fused = lambda _: True
        assert unit_route.takes(config, None, None)
        choice, there = unit_route.route(
            segment, rows, _moved(covered, device), _moved(described, device), probe.finite.to(device), *arguments, 3
        )  # fmt: skip
    finally:
        device_path.fused = on_cuda
    assert there.layout == packed.layout
    there.part("laps_us").copy_(packed.part("laps_us"))
    found = Readout(there).numpy()
    # The twins once more, on the kernel's own means: what was decided must be theirs to the last bit.
    names = ("mass", "recent_mass", "disagreement", "density", "kernel_us")
    scores = DeviceScores(**{name: torch.from_numpy(found[name]) for name in names}, predicted_error=None)
    risk = scores.risk(config.alpha, 0.0)
    routed = router_device.choose(scores.gate, risk, scores.kernel_us, config, gate, None)
    certificate_mass = mass[:, :, rows.slice_of(CERTIFICATE)].flatten(0, 1).double()
    certified = fallback.certify(
        scores.kernel_us, scores.gate, certificate_mass, routed.choice, config, gate, None
    )
    wanted = {**twin, "risk": risk.numpy(), "routed_choice": routed.choice.numpy()}
    wanted |= {f"step5_{name}": value.numpy() for name, value in vars(certified).items()}
    pairs = {name: (torch.from_numpy(wanted[name]), torch.from_numpy(found[name])) for name in wanted}
    return {**pairs, "choice": (certified.choice.view(units), choice.cpu())}


def laps(device: str) -> Pair:
    """Lap times by the kernel."""
    from routesparse.kernels.record_triton import write_laps

    times = torch.tensor([10**18, 10**18 + 1_500, 10**18 + 1_500, 10**18 + 9_007_199_254_740_993])
    found = torch.empty(3, dtype=torch.float64, device=device)
    write_laps(times.to(device), found)
    return times.diff().double() / 1e3, found.cpu()


def block_lse(
    keys: int,
    shape: tuple[int, int, int, int],
    count: int,
    first_keys: list[int] | None,
    shift: int,
    dtype: torch.dtype,
    device: str,
) -> dict[str, Pair]:
    """(in float64, fused) block log-sum-exps of count rows a head; shape: batch, heads, KV heads, head size."""
    from routesparse.kernels.lse_triton import block_lse

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
        found = block_lse(
            torch.zeros_like(there_q),
            torch.zeros_like(there_k),
            positions.to(device),
            None if first_keys is None else first.to(device),
            shift=shift,
            keys=keys,
            block_k=64,
            scale=head_size**-0.5,
            softcap=None,
            table=torch.tensor([there_q.data_ptr(), there_k.data_ptr()], device=device),
        )
    finally:
        torch.use_deterministic_algorithms(False)
    return {"block_lse": (wanted.float(), found.cpu())}


def decide(kind: dict[str, Any], device: str) -> dict[str, Pair]:
    """A whole decision, row plan included: (on the CPU, fused) by name."""
    from routesparse.engine.decide import layer
    from routesparse.engine.device import device_path
    from routesparse.engine.method.segments import split

    oracle = _oracle()
    inputs = oracle.draw_inputs(3, **kind)
    segment = split(inputs.q.shape[2], inputs.k.shape[2], oracle.SMALL)[-1]
    arguments = (segment, 0, replace(oracle.SMALL, tau=0.5), 0.6, oracle.PROFILE, None)
    twin = layer.begin(inputs, *arguments)
    plan = layer.plan_of(twin, inputs)
    on_cuda = device_path.fused
    device_path.fused = lambda _: True
    try:
        there = _moved(inputs, device)
        fused = layer.begin(there, *arguments)
        lowered = layer.plan_of(fused, there).to("cpu").validate()
    finally:
        device_path.fused = on_cuda
    here, found = twin.read(), fused.read()
    assert fused.density is not None
    pairs: dict[str, Pair] = {
        "plan density": (lowered.head_density(), fused.density.cpu()),
        "choice": (torch.from_numpy(here.choice), torch.from_numpy(found.choice)),
        "density by plan": (plan.head_density(), lowered.head_density()),
    }
    for name in ("mass", "recent_mass", "disagreement", "density"):
        pairs[name] = tuple(torch.from_numpy(getattr(d.scores, name)) for d in (here, found))
    return pairs
