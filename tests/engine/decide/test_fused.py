"""The kernels of the probe, the builders, scoring and lowering against their torch twins.

On the GPU where there is one, else interpreted, in a process of its own.
"""

from dataclasses import replace

import pytest
import torch

from routesparse.engine.decide.decision import LayerSettings
from routesparse.engine.decide.units import route_by_method
from routesparse.engine.device.copies import Readout
from routesparse.engine.device.timing import Stamps
from routesparse.engine.method import fallback, router
from routesparse.engine.method.families import priced_candidate
from routesparse.engine.method.layer_certificate import layer_lower_mass
from routesparse.engine.method.layer_fallback import climb, masses_of
from routesparse.engine.method.records import CERTIFICATE, Context, Probe
from routesparse.engine.method.router import Scores
from routesparse.kernels.betting_bound import betting_lower_bound
from tests.engine import fused_run
from tests.triton_process import triton_process

# The interpreter is slow: few heads and blocks, and several settings in one problem.
PAIR = {"heads": 2, "kv_heads": 1}
APART = {"heads": 2, "kv_heads": 2}
KINDS = {
    "by-address-n210": ({"n_q": 210, **PAIR}, {}, True),
    "pooled-chunk-nq90-nk331": ({"n_q": 90, "n_k": 331, **APART}, {"probe": "pooled"}),
    "padded-b2-head-24-n170": ({"n_q": 170, "batch": 2, "key_start": [0, 77], "head_dim": 24, **PAIR}, {}),
    "softcap-sinks-recent-100-n230": (
        {"n_q": 230, "softcap": 3.0, "sinks": True, **PAIR},
        {"recent_rows": 100, "tail_tokens": 128},
    ),
    "g4-n133": ({"n_q": 133, "kv_heads": 1}, {}),
}
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: the interpreter is slow")
# Rows of several pieces, of which some lie between the sink and the local blocks.
LONG = pytest.param(({"n_q": 9_000}, {}), id="several-pieces-n9000", marks=NEEDS_GPU)
# Names that begin so are equal to the last bit.
EXACT = (
    "picture",
    "a_shape",
    "slash levels",
    "readers of",
    "masses of columns",
    "plan",
    "mass tiles",
    "mass columns",
    "probe finite",
    "placed rows",
    "counts of",
)
# Changes, lambda, candidates and units [B, H].
ROUTED = {
    "default-rows": ({"certificate_rows": 128}, 0.93, 21, (2, 3)),
    "32-certificate-rows": ({"tau": 0.82}, 0.9, 20, (2, 6)),
    "one-test": ({"max_tests": 1, "tau": 0.8}, 0.85, 9, (2, 4)),
    "five-tests": ({"max_tests": 5, "tau": 0.8, "alpha": 0.3}, 0.8, 21, (2, 4)),
    "no-fallback": ({"fallback": False, "tau": 0.83}, 0.9, 13, (2, 4)),
    "no-boundary": (
        {"boundary_rows": 0, "recent_rows": 100, "routing_rows": 33, "tau": 0.82},
        0.9,
        16,
        (2, 4),
    ),
    "200-certificate-rows": ({"certificate_rows": 200, "tau": 0.88}, 0.8, 11, (2, 2)),
    "all-admissible": ({"tau": 0.84}, 0.0, 21, (2, 4)),
}
PRICED = {
    "default-rows": ({"certificate_rows": 128, "tau_layer": 0.7, "tau_head": 0.4}, (4, 6)),
    "32-certificate-rows": ({"tau_layer": 0.6, "tau_head": 0.3}, (4, 6)),
    "one-test-one-head": ({"max_tests": 1, "tau_layer": 0.6, "tau_head": 0.5}, (7, 1)),
    "eight-tests": ({"max_tests": 8, "tau_layer": 0.6, "tau_head": 0.3, "alpha": 0.3}, (3, 5)),
    "no-fallback": ({"fallback": False, "tau_layer": 0.6, "tau_head": 0.3}, (4, 6)),
    "no-boundary": ({"boundary_rows": 0, "recent_rows": 100, "routing_rows": 33, "tau_layer": 0.65}, (5, 7)),
    "200-certificate-rows": ({"certificate_rows": 200, "tau_layer": 0.7, "tau_head": 0.4}, (4, 6)),
    "no-tau": ({"tau_layer": 0.0, "tau_head": 0.0}, (2, 6)),
    "20-heads": ({"certificate_rows": 128, "tau_layer": 0.77, "tau_head": 0.5}, (2, 20)),
}
MEANS = ("mass", "recent_mass", "disagreement")


def _run(name, *arguments):
    return getattr(fused_run, name)(*arguments)


@pytest.fixture(scope="module")
def run():
    """run(function of fused_run.py, arguments...) by the kernels, the device last."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with triton_process() as in_triton:
        yield lambda name, *arguments: in_triton(_run, name, *arguments, device)


@pytest.fixture(scope="module", params=[*(pytest.param(k, id=name) for name, k in KINDS.items()), LONG])
def pairs(request, run):
    """(by the naive twins, by the kernels) of every step of one problem, by name."""
    kind, changes, *by_table = request.param
    twin = _run("steps_by_twins", kind, changes)
    wanted = _run("steps", twin, bool(by_table), "cpu") if not by_table else _twins_in_small_pictures(twin)
    found = run("steps", twin, bool(by_table))
    assert wanted.keys() == found.keys()
    order = twin["rows"].rows.argsort(dim=-1, stable=True).int()
    return {name: (wanted[name], found[name]) for name in wanted} | {
        "placed rows in order": (order, run("row_order", twin["rows"].rows))
    }


def _twins_in_small_pictures(twin):
    """The twins take no table of addresses; their pictures are pooled as the kernels' are."""
    sizes = {place: size for place, size in fused_run.small_pieces().items() if place[1] == "MAX_COLUMNS"}
    before = {place: getattr(*place) for place in sizes}
    try:
        for (owner, name), size in sizes.items():
            setattr(owner, name, size)
        return fused_run.steps(twin, False, "cpu")
    finally:
        for (owner, name), size in before.items():
            setattr(owner, name, size)


def test_every_kernel_computes_what_its_twin_computes(pairs):
    assert any(twin.any() for name, (twin, _) in pairs.items() if name.endswith("keys"))
    for name, (twin, fused) in pairs.items():
        if name.startswith(("binned", "built")):
            # A score on a bin's edge may round to either side.
            assert (twin == fused).float().mean() > 0.995, name
        elif name == "block scores":
            # Half precision of logarithms down to -20.
            torch.testing.assert_close(fused, twin, atol=0.02, rtol=0)
        elif name == "columns":
            # Which of those that tie is the device's to say: their masses are compared.
            assert twin.shape == fused.shape and (fused.sort(-1).values.diff(dim=-1) > 0).all()
        elif name.startswith(EXACT):
            assert torch.equal(twin, fused), name
        else:
            torch.testing.assert_close(
                fused, twin, atol=3e-5, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}"
            )
    for name, (twin, fused) in pairs.items():
        if name.startswith("exact density"):
            for density, exact in ((0, twin), (1, fused)):
                counted = pairs[name.removeprefix("exact ")][density]
                torch.testing.assert_close(counted, exact, atol=1e-12, rtol=0)
        if name.startswith("counts of"):
            assert twin == fused == 0


@pytest.mark.parametrize(("changes", "gate", "width", "units"), ROUTED.values(), ids=ROUTED.keys())
def test_the_route_kernel_decides_and_records_what_the_method_does(run, changes, gate, width, units):
    case = _run("random_units", changes, width, units)
    found, choice = run("route_by_kernels", case, gate)
    wanted = by_the_method(case, gate, found)
    assert wanted.keys() == found.keys()
    for name, twin in wanted.items():
        if name in MEANS:
            torch.testing.assert_close(found[name], twin, atol=1e-6, rtol=0, msg=name)
        elif name in ("bounds", "lower_mass"):
            # A bisection may end one step of 2^-24 beside.
            torch.testing.assert_close(found[name], twin, atol=1.3e-7, rtol=0, equal_nan=True, msg=name)
        else:
            assert torch.equal(twin, found[name]), name
    assert torch.equal(wanted["choice"].view(choice.shape), choice)
    kinds = set(wanted["kind"].tolist())
    assert len(kinds) > 1 or "fallback" in changes


@pytest.mark.parametrize(("changes", "units"), PRICED.values(), ids=PRICED.keys())
def test_the_route_kernels_meet_the_price_and_climb_as_the_method_does(run, changes, units):
    case = _run("random_units", changes, 0, units)
    if not changes["tau_layer"]:
        case["masses"].row_mass[0, :, :, :-1] = 0.0  # which reaches 0, too
    found, choice = run("route_by_kernels", case, 0.9)
    wanted = by_the_method(case, 0.9, found)
    assert wanted.keys() == found.keys()
    for name, twin in wanted.items():
        if name in MEANS:
            torch.testing.assert_close(found[name], twin, atol=1e-6, rtol=0, msg=name)
        else:
            assert torch.equal(twin, found[name]), name
    assert torch.equal(wanted["choice"].view(choice.shape), choice)
    assert choice[-1, -1] == found["routed_choice"][-1] == len(case["candidates"]) - 1
    assert wanted["state"].any() == bool(changes["tau_layer"] and "fallback" not in changes)


@pytest.mark.parametrize(("heads", "count"), [(6, 40), (2, 8)], ids=["free-bets", "capped-bets"])
def test_a_kernels_certificate_passes_up_to_its_bound_and_not_beyond(run, heads, count):
    case = _run("random_units", {"certificate_rows": count}, 0, (2, heads))
    config, rows = case["config"], case["rows"].slice_of(CERTIFICATE)
    ladder = run("route_by_kernels", case, 0.9)[0]["ladder"]
    masses = masses_of(case["masses"].row_mass[:, :, rows].flatten(0, 1).double(), ladder)[:, 0].numpy()
    head = betting_lower_bound(masses, 1.0 - config.confidence)[heads]
    layer = layer_lower_mass(masses.reshape(2, heads, -1), 1.0 - config.confidence)[1]
    assert 0.0 < head < layer < 1.0
    for beyond in (0.0, 2.0**-22):
        case["config"] = replace(config, tau_head=float(head) + beyond, tau_layer=float(layer) + beyond)
        found, _ = run("route_by_kernels", case, 0.9)
        assert found["head_passed"][heads, 0] == found["layer_passed"][1, 0] == (not beyond)


def by_the_method(case, gate, found):
    """What the method records of the case: its own means, and what it decides on the kernel's means.

    Means are sums in another order, so they are compared on their own; given the same means, what was decided must be
    equal to the last bit.
    """
    config, profile, masses = case["config"], case["profile"], case["masses"]
    nothing = torch.zeros(())
    probe = Probe(case["rows"], *[nothing] * 8, torch.tensor(True))
    stamps = Stamps(torch.device("cpu"), laps=3)
    stamps.lap()
    stamps.lap()
    settings = LayerSettings(config, gate, profile)
    context = Context(None, case["segment"], case["candidates"], probe)
    _, packed = route_by_method(context, masses, case["described"], settings, None, stamps)
    packed.part("laps_us").zero_()
    wanted = {name: torch.from_numpy(x) for name, x in Readout(packed).numpy().items()}
    names = ("mass", "recent_mass", "disagreement", "density", "kernel_us")
    scores = Scores(**{name: found[name] for name in names}, predicted_error=None)
    risk = scores.risk(config.alpha, 0.0)
    priced = config.policy == "priced"
    g, cost = scores.gate_statistic, scores.kernel_us
    threshold = router.priced_threshold(g, priced_candidate(case["candidates"])) if priced else gate
    routed = router.choose(g, risk, cost, config, threshold, None)
    rows = masses.row_mass[:, :, case["rows"].slice_of(CERTIFICATE)].flatten(0, 1).double()
    if priced:
        certified = climb(cost, rows, routed.choice, case["candidates"], config, len(masses.row_mass))
    else:
        certified = fallback.certify(cost, g, rows, routed.choice, config, gate, None)
    wanted |= {"risk": risk, "routed_choice": routed.choice}
    return wanted | vars(certified)


def test_lap_times_are_exact_to_the_nanosecond(run):
    wanted, found = run("laps")
    assert torch.equal(wanted, found)


WHOLE = {
    "padded-softcap-n170": (
        {"n_q": 170, "batch": 2, "key_start": [0, 61], "softcap": 4.0, **PAIR},
        "certified",
    ),
    "chunk-nq100-nk420": ({"n_q": 100, "n_k": 420, **APART}, "priced"),
}


@pytest.mark.parametrize(("kind", "policy"), WHOLE.values(), ids=WHOLE.keys())
def test_a_whole_decision_by_the_kernels_is_the_twins(run, kind, policy):
    """Equal but for named ties: a block whose score lies on a bin's edge may belong to either bin."""
    twin, fused = _run("decide", kind, policy, "cpu"), run("decide", kind, policy)
    ties = (twin["levels"] != fused["levels"]).float().mean()
    assert ties < 0.005
    torch.testing.assert_close(
        fused["density of the plan"], fused["exact density of the plan"], atol=1e-12, rtol=0
    )
    for name in ("mass", "recent_mass", "disagreement", "density", "kernel_us"):
        near = 3e-5 if not ties else 0.02
        torch.testing.assert_close(fused[name], twin[name], atol=near, rtol=1e-3, msg=name)
    if not ties:
        assert torch.equal(twin["choice"], fused["choice"])
        assert torch.equal(twin["keys"], fused["keys"])
    assert (twin["choice"] == fused["choice"]).float().mean() >= 0.9


@pytest.mark.parametrize(
    "case",
    [
        (700, (1, 8, 2, 128), 80, None, 0, torch.bfloat16),
        (777, (2, 4, 4, 64), 37, [0, 300], 0, torch.float16),
        (1_003, (2, 3, 1, 128), 90, [500, 0], 0, torch.float16),
        (64, (1, 2, 1, 128), 5, None, 0, torch.bfloat16),
        (2_100, (1, 7, 1, 64), 40, None, 1_500, torch.bfloat16),
        (17_000, (1, 2, 1, 64), 70, None, 0, torch.bfloat16),
    ],
    ids=["g4", "padded-d64", "padded-g3", "one-block", "chunk-of-600", "long"],
)
def test_block_log_sum_exps_of_many_rows_and_keys_are_the_oracles(run, case):
    wanted, found = run("block_lse", *case)
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-5)
