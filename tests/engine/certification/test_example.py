"""The reference's examples run as they stand, in Python and in the shell, with foreign masks. CPU."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch.nn.attention.flex_attention import create_block_mask

from routesparse.kernels.interface import RowPlan

ROOT = Path(__file__).parents[3]
SECTION = (ROOT / "engine" / "README.md").read_text().split("## Certify any attention\n")[1].split("\n## ")[0]
WHOLE, NAMED = re.findall(r"```python\n(.*?)```", SECTION, flags=re.DOTALL)
SHELL = re.search(r"```\n(mkdir .*?)```", SECTION, flags=re.DOTALL)[1].splitlines()
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


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """The examples save into var/ of where they run: not into that of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("mask", MASKS)
def test_the_reference_s_example_runs(tiny_model, tmp_path, capsys, mask):
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
            NAMED.replace("with certify(attention)", "plans.append(report)\nwith certify(attention)"),
            "README.md",
            "exec",
        ),
        {**given, "plans": plans},
    )
    assert "sdpa: exact" in capsys.readouterr().out
    (judged,) = plans
    assert judged.verdict.level == "exact" and 0.3 < judged.run.mass_bound < judged.run.mass < 1


def test_the_example_that_needs_no_model_finds_the_rows_that_are_missing(capsys):
    torch.manual_seed(0)
    exec(compile(WHOLE, "README.md", "exec"), {})
    assert "forgetful: differs" in capsys.readouterr().out


def test_the_lines_for_the_shell_run_in_their_order(run, tmp_path, monkeypatch):
    """On 5,000 characters in place of 12,000, with the bundled model."""
    (tmp_path / "data").symlink_to(ROOT / "data")
    monkeypatch.setenv("ROUTESPARSE_HOME", str(tmp_path / "home"))
    verdicts = []
    for line in SHELL:
        program, *words = shlex.split(line)
        if program.endswith("routesparse"):
            code, out, err = run(*words)
            assert code == 0, (line, err)
            verdicts.append(" ".join(out.split()))
        else:
            smaller = line.replace("12000", "5000").replace(".venv/bin/python", shlex.quote(sys.executable))
            subprocess.run(smaller, shell=True, check=True)
    assert len(verdicts) == 3
    for plan, told in zip(("heads.json", "xattention=0.9", "indexer=12"), verdicts, strict=True):
        assert f"by {plan}: differs" in told and "the largest key in" in told
    assert len(list((tmp_path / "home" / "spool").glob("*/manifest.json"))) == 3
