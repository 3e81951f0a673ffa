"""What an output lost at rows, against attention written out. CPU."""

import pytest
import torch

from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.method import output_errors as module
from routesparse.engine.method.output_errors import output_errors


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("n_q", [40, 13])
@pytest.mark.parametrize(
    "changes", [{}, {"softcap": 2.0}, {"sinks": drawn(4)}], ids=["plain", "softcap", "sinks"]
)
@pytest.mark.parametrize("most", [1 << 27, 50], ids=["at once", "row by row"])
def test_d_is_what_ran_less_exact_attention(n_q, changes, most, monkeypatch):
    monkeypatch.setattr(module, "MOST_LOGITS", most)
    q, k, v = drawn(1, 4, n_q, 8), drawn(1, 2, 40, 8), drawn(1, 2, 40, 8) + 1
    rows, out = torch.tensor([0, 5, n_q - 1]), drawn(1, 4, n_q, 8)
    d, exact = output_errors(AttentionInputs(q, k, v, 0.3, **changes), out, rows)
    logits = 0.3 * q @ k.repeat_interleave(2, 1).mT
    if cap := changes.get("softcap"):
        logits = cap * (logits / cap).tanh()
    logits += torch.full((n_q, 40), -torch.inf).triu(40 - n_q + 1)
    sinks = changes.get("sinks", torch.full((4,), -torch.inf)).view(1, 4, 1, 1).expand(-1, -1, n_q, 1)
    weights = torch.cat([logits, sinks], -1).softmax(-1)[..., :-1]
    wanted = (weights @ v.repeat_interleave(2, 1))[0][:, rows]
    torch.testing.assert_close(exact, wanted, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(d, out[0][:, rows] - wanted, atol=2e-6, rtol=1e-5)
