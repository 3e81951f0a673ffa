"""Routing is not blind: on real attention the prompt, the head and the recent rows decide. CPU, lab checkpoint."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from routesparse.engine.method import router
from routesparse.engine.runtime.session import RoutingSession
from routesparse.engine.runtime.transformers import routed_by

KINDS = ("prose", "needle")
LAYERS = (1, 3, 5, 7)


def test_a_mean_over_the_body_alone_would_pass_heads_that_fail_the_rows_that_ask(oracle, lab):
    """Gated by m-hat alone some heads lose the question's rows; gated by g none does."""
    gate, blind, seeing, units = 0.9, 0, 0, 0
    for layer in LAYERS:
        scores = lab.decision("needle", layer, oracle.PROFILE).scores
        mean_only = replace(scores, recent_mass=scores.mass)
        heads = np.arange(len(scores.mass))
        for found, chosen in ((mean_only, True), (scores, False)):
            place = router.cheapest_admissible(found.gate_statistic, found.kernel_us, gate)
            lost = int((scores.recent_mass[heads, place] < gate).sum())
            blind, seeing = (blind + lost, seeing) if chosen else (blind, seeing + lost)
        units += len(heads)
    assert seeing == 0
    assert blind >= 0.1 * units


@pytest.mark.parametrize("kind", KINDS)
def test_the_routed_model_predicts_the_same_next_token_as_dense(oracle, lab, kind):
    ids = lab.ids(kind)
    routed = RoutingSession(lab.config, profile=oracle.PROFILE)
    with torch.no_grad():
        dense = lab.loaded.model(ids, logits_to_keep=1, use_cache=False).logits[0, -1].float()
        with routed_by(lab.loaded.model, routed):
            sparse = lab.loaded.model(ids, logits_to_keep=1, use_cache=False).logits[0, -1].float()
    assert routed.trace.record().run.sparse_units > 0
    assert sparse.argmax() == dense.argmax()
    assert (sparse.softmax(-1) - dense.softmax(-1)).abs().sum() / 2 < 0.1
