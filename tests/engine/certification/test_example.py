"""The reference's example runs as it stands, with three kinds of foreign masks. CPU, tiny model."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch.nn.attention.flex_attention import create_block_mask

from routesparse.kernels.interface import RowPlan

REFERENCE = (Path(__file__).parents[3] / "engine" / "README.md").read_text()
TOKENS, HEADS = 300, 2
BLOCKS = np.tri(3, 5, 1, dtype=bool)
BLOCKS[2, 1] = False
MASKS = {
    "numpy": np.broadcast_to(BLOCKS, (2, HEADS, 3, 5)),
    "flex": create_block_mask(
        lambda b, h, q, k: (q >= k) & (q - k < 150), 1, 1, TOKENS, TOKENS, device="cpu"
    ),
    "row plan": RowPlan.from_block_mask(torch.tensor(BLOCKS).expand(1, HEADS, 3, 5), TOKENS, TOKENS),
}


@pytest.mark.parametrize("mask", MASKS)
def test_the_reference_s_example_runs(tiny_model, tmp_path, capsys, mask):
    section = REFERENCE.split("## Certify any attention\n")[1].split("\n## ")[0]
    (example,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_model.save(tmp_path / "tiny"))
    q, k, v = torch.randn(3, 1, HEADS, TOKENS, 16, generator=torch.Generator().manual_seed(0))

    def attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    ids = torch.arange(TOKENS)[None] % 250
    given = {"model": model.eval(), "input_ids": ids, "block_mask": MASKS[mask], "attention": attention}
    given |= {"q": q, "k": k, "v": v, "out": attention(q, k, v)}
    plans = []
    exec(
        compile(
            example.replace("with certify(attention)", "plans.append(report)\nwith certify(attention)"),
            "README.md",
            "exec",
        ),
        {**given, "plans": plans},
    )
    assert "sdpa: exact" in capsys.readouterr().out
    (judged,) = plans
    assert judged.verdict.level == "exact" and 0.3 < judged.run.plan.mass_bound < judged.run.plan.mass < 1
