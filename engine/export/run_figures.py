"""The figures of a run, as its map and its report have them at the top: its predicted loss first."""

from __future__ import annotations

from routesparse.engine.export import numbers
from routesparse.engine.rows import RunRow

Figure = tuple[str, str, str]  # name, value, note


def figures(run: RunRow, density: float | None, units: int | None, layers: int) -> list[Figure]:
    """density: of the units' bodies, the mean; units, layers: how many ran without certified mass; None where decisions
    were lost: nobody knows it of those."""
    prefill = (numbers.millis(run.total_ms), "dense not measured")
    if run.speedup is not None:
        both = f"dense {numbers.millis(run.dense_ms)}, here {numbers.millis(run.total_ms)}"
        prefill = (numbers.times(run.speedup), f"{both}; each measured once")
    noun = "head" if run.segments == run.batch == 1 else "unit"
    fell = f"{run.dense_fallback_units:,} of {numbers.several(run.units, noun)}"
    fell += f"; {run.expanded_units:,} took a larger plan" if run.expanded_units else ""
    shown = [
        ("Predicted loss", *_loss(run)),
        (
            "Causal area kept",
            numbers.share(density),
            f"mean over {noun}s; {numbers.share(run.density)} with the dense tail",
        ),
        ("Prefill", *prefill),
        ("Dense by fallback", numbers.share(run.fallback_share), fell),
        ("Next token", *_next_token(run)),
    ]
    if run.mean_error is not None:  # the verdict says that a run was not audited
        shown.append(("Output error", numbers.mass(run.mean_error, 4), "relative, audited mean"))
    # Where a loss was predicted, bounds on kept mass are its evidence.
    if run.loss_nats is None or run.tau_layer is None:
        of_layers = 0 if run.tau_layer is None else run.layers
        shown.insert(4, uncertified(units, run.sparse_units, layers, of_layers))
    return shown


def uncertified(units: int | None, sparse: int, layers: int, of_layers: int) -> Figure:
    """units: of the sparse ones; layers: of of_layers, 0 where no layer is certified by itself."""
    name = "Mass not certified"
    if units is None:
        return name, numbers.NOT_MEASURED, "decisions are missing"
    if layers:
        return (
            name,
            numbers.several(layers, "layer"),
            f"of {of_layers:,}; {units:,} of {sparse:,} sparse units",
        )
    return (
        name,
        f"{units:,} of {sparse:,}",
        "sparse units" + (f"; 0 of {of_layers:,} layers" if of_layers else ""),
    )


def _loss(run: RunRow) -> tuple[str, str]:
    if run.loss_nats is None:
        return numbers.NOT_MEASURED, "no rows were replayed"
    told = f"no bound: {run.why_unbounded}"
    if run.loss_bounded:
        level = numbers.share(run.confidence, 0)
        told = f"at most {numbers.kl(run.loss_bound)}, {level}, fitted on {run.loss_fit}"
    return numbers.kl(run.loss_nats), told


def _next_token(run: RunRow) -> tuple[str, str]:
    if run.top1_agreement is None:
        return numbers.NOT_MEASURED, "no dense prefill to compare with"
    told = "as by dense" if run.top1_agreement == 1 else "differs from dense"
    if run.batch > 1:
        told = f"{numbers.share(run.top1_agreement, 0)} as by dense"
    return told, f"KL {numbers.kl(run.kl_nats)}"
