"""The drift alarm: rarely in domain, also across documents; surely elsewhere; silent outside its lengths. No GPU."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest

from routesparse.engine.calibration.drift import (
    DriftReference,
    check_reference,
    describe_prompt,
    fit_component,
    fit_reference,
)
from routesparse.engine.schema import FieldError, checked

NAMES = [f"entropy {i}" for i in range(6)]


def prompts(seed, documents, per_document, shift=0.0, spread=0.5):
    """Descriptors of windows: a line in log2 n, an effect per document, and noise."""
    rng = np.random.default_rng(seed)
    document = np.repeat(np.arange(documents), per_document)
    tokens = rng.integers(4_096, 8_193, len(document)).astype(float)
    effect = rng.normal(0, spread, (documents, len(NAMES)))[document]
    values = 2 + 0.4 * np.log2(tokens)[:, None] + effect + rng.normal(0, 0.3, (len(document), len(NAMES)))
    return values + shift, tokens, [f"{seed}-{d}" for d in document]


def reference(domains=("prose",), shifts=(0.0,), documents=8):
    parts = [prompts(i, documents, 15, shift) for i, shift in enumerate(shifts)]
    values, tokens = (np.concatenate([p[i] for p in parts]) for i in (0, 1))
    names = [name for p in parts for name in p[2]]
    domain = [d for d in domains for _ in range(documents * 15)]
    return fit_reference(NAMES, values, tokens, names, domain, 4_096, 8_192)


def alarms(ref, values, tokens):
    return np.mean([ref.assess(v, int(n)).alarm for v, n in zip(values, tokens, strict=True)])


def test_it_goes_off_on_few_windows_of_new_documents_of_the_domain():
    """Over ten draws, because windows of one document alarm together."""
    ref = reference(documents=12)
    values, tokens, _ = prompts(99, 200, 5)
    assert alarms(ref, values, tokens) <= 0.08


def test_without_leaving_documents_out_it_would_go_off_too_often():
    """The control: distances of windows from a component that has seen their document are too short."""
    values, tokens, names = prompts(0, 4, 30, spread=1.5)
    honest = fit_reference(NAMES, values, tokens, names, ["p"] * len(names), 4_096, 8_192)
    seen = np.sort(fit_component("p", values, tokens).distance(values, tokens))
    fresh, at, _ = prompts(98, 200, 5, spread=1.5)
    naive = dataclasses.replace(honest, distances=tuple(seen))
    assert alarms(naive, fresh, at) > 2 * alarms(honest, fresh, at)


def test_it_goes_off_elsewhere_and_of_several_domains_the_nearest_counts():
    both = reference(("code", "prose"), (0.0, 6.0), documents=16)
    assert [c.name for c in both.components] == ["code", "prose"]
    between, tokens, _ = prompts(5, 20, 5, shift=3.0)
    assert alarms(both, between, tokens) >= 0.9
    elsewhere, tokens, _ = prompts(7, 20, 5, shift=4.0)
    assert alarms(reference(), elsewhere, tokens) >= 0.95
    for shift in (0.0, 6.0):
        values, tokens, _ = prompts(6, 40, 3, shift=shift)
        assert alarms(both, values, tokens) <= 0.1


def test_the_farthest_descriptor_is_named():
    ref = reference()
    values, _, _ = prompts(3, 1, 1)
    values = values[0].copy()
    values[4] += 30.0
    assert ref.assess(values, 6_000).most == "entropy 4"


@pytest.mark.parametrize("tokens", [4_095, 8_193])
def test_outside_the_calibrated_lengths_nothing_is_said(tokens):
    assert reference().assess(np.zeros(len(NAMES)), tokens) is None


def test_the_p_value_counts_the_reference_prompts_at_least_as_far():
    ref = reference()
    for distance in (ref.distances[0], ref.distances[60], ref.distances[-1] + 1):
        fake = dataclasses.replace(
            ref, components=(SimpleNamespace(distance=lambda v, n, d=distance: d, residual=lambda v, n: v,
                                             spread=(1.0,) * 6),),
        )  # fmt: skip
        found = fake.assess(np.zeros(6), 5_000)
        count = sum(d >= distance for d in ref.distances)
        assert found.p == pytest.approx((1 + count) / (len(ref.distances) + 1))


def test_one_document_tells_nothing_about_another():
    values, tokens, names = prompts(0, 1, 30)
    assert fit_reference(NAMES, values, tokens, names, ["p"] * 30, 4_096, 8_192) is None


def test_descriptors_are_means_over_heads_and_segments_by_layer():
    rows = [
        SimpleNamespace(layer=layer, entropy=e, local_band=0.5, agreement=0.25)
        for layer, e in ((3, 1.0), (1, 2.0), (3, 3.0))
    ]
    names, values = describe_prompt(rows)
    assert names[:2] == ("entropy 1", "entropy 3")
    np.testing.assert_allclose(values, [2.0, 2.0, 0.5, 0.5, 0.25, 0.25])


def test_a_reference_survives_json_and_a_broken_one_is_refused():
    ref = reference()
    values = json.loads(json.dumps(dataclasses.asdict(ref)))
    assert checked(DriftReference, values) == ref
    check_reference(ref, "drift")
    values["components"][0]["precision"].pop()
    with pytest.raises(FieldError, match=r"drift\.components\[0\]\.precision is .*, it must be a list of"):
        check_reference(checked(DriftReference, values), "drift")
