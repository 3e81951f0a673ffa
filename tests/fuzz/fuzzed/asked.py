"""What somebody asks for: a run, a budget, a prompt, an evaluation, and a block mask to certify."""

from __future__ import annotations

import io
import json

import numpy as np
from fuzzed.target import Target, bytes_like, json_bytes, tensors_like, written
from hypothesis import strategies as st
from safetensors.numpy import save

from routesparse.engine import errors
from routesparse.engine.certification.mask_files import read_masks
from routesparse.engine.config import LatencyBudget
from routesparse.engine.evaluation.runner.job import Job
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.prompts import read_prompt

_JOB = {
    **{
        "suite": "ruler",
        "tasks": ["vt"],
        "lengths": [8192],
        "methods": ["routesparse=0.5,1"],
        "n": 2,
        "seed": 0,
    },
    **{"model": "demo", "data": "data", "out": "out", "extras": True},
}


def _mask_array() -> bytes:
    """More blocks than its header has bytes, so that half of the changes hit blocks."""
    buffer = io.BytesIO()
    np.save(buffer, np.ones((2, 1, 16, 32), bool))
    return buffer.getvalue()


def _mask_tensors() -> bytes:
    return save({"layer.0": np.ones((1, 16, 32), bool)}, metadata={"block_q": "128", "block_k": "64"})


TARGETS: dict[str, Target] = {
    "evaluation's job": Target(
        json_bytes(_JOB), written("job.json", lambda file: Job.load(file.parent)), (errors.InputError,)
    ),
    "request": Target(
        json_bytes(json.loads(RunRequest().to_json())).map(
            lambda content: content.decode("utf-8", "replace")
        ),
        lambda text, folder: RunRequest.from_json(text).config(),
        (errors.ConfigError,),
    ),
    "budget": Target(
        st.text(max_size=20)
        | st.from_regex(r"[-+0-9.eEus ]{0,12}", fullmatch=True)
        | st.from_regex(r" *[-+]?[0-9]{0,4}\.?[0-9]{1,400}([eE][-+]?[0-9]{1,4})?(us)? *", fullmatch=True)
        | st.floats().map(str),
        lambda text, folder: LatencyBudget.parse(text),
        (errors.ConfigError,),
    ),
    "prompt": Target(
        st.binary(max_size=200)
        | bytes_like("\ufeffA line of text, täglich.\n".encode() * 4)
        | st.text().map(str.encode),
        written("x.txt", read_prompt),
        (errors.PromptError,),
    ),
    "mask, NumPy": Target(bytes_like(_mask_array()), written("x.npy", read_masks), (errors.ConfigError,)),
    "mask, safetensors": Target(
        tensors_like(_mask_tensors()), written("x.safetensors", read_masks), (errors.ConfigError,)
    ),
}
