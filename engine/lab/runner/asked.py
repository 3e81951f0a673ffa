"""What predicting and timing share: a prompt as the bench takes it, and what names a row of either."""

from __future__ import annotations

import hashlib
import json
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import InputError
from routesparse.engine.lab.runner.code_hash import code_hash
from routesparse.engine.lab.studies.selection import methods, prompts
from routesparse.engine.lab.suites import pg19
from routesparse.engine.provenance import git_commit

if TYPE_CHECKING:
    from routesparse.engine.lab.runner.job import Job
    from routesparse.engine.lab.runner.prepare import Prepared
    from routesparse.engine.models.load import LoadedModel


def config_hash(method: methods.Method, loaded: LoadedModel, extras: bool, segment_tokens: int) -> str:
    """Sixteen hex digits of all that decides a prediction but the prompt: settings, weights and code (code_hash.py)."""
    config = None if method.rule else RouterConfig(**{"segment_tokens": segment_tokens, **method.options})
    described: dict[str, Any] = {
        "method": method.name,
        "setting": method.setting,
        "rule": repr(method.rule) if is_dataclass(method.rule) else None,
        "options": method.options,
        "config": config and config.to_dict(),
        "code": code_hash(method, loaded.on_gpu),
        "extras": extras or not methods.takes_extras(method.name),
        "segment_tokens": segment_tokens,
        "model": loaded.revision,
        "tokenizer": loaded.tokenizer_hash,
        "dtype": loaded.dtype,
    }
    # A latency budget is written as its text.
    return hashlib.sha256(json.dumps(described, sort_keys=True, default=str).encode()).hexdigest()[:16]


def check_lengths(prompts_of_job: list[Prepared], loaded: LoadedModel) -> None:
    """Errors: InputError for prompts that the model can't read."""
    longest = max((p.tokens + p.example.new_tokens for p in prompts_of_job), default=0)
    if longest > loaded.max_tokens:
        raise InputError(
            f"prompts and answers of {longest:,} tokens are longer than {loaded.name} reads, {loaded.max_tokens:,}; "
            "lower --lengths"
        )


def label(job: Job, method: methods.Method, prepared: Prepared, code: str) -> dict[str, Any]:
    """What names a row of predictions or times: configuration, prompt and commit."""
    return {
        "config_hash": code,
        "sample_id": prepared.sample_id,
        "suite": job.suite,
        "task": prepared.example.task,
        "length": prepared.length,
        "index": prepared.example.index,
        "seed": job.seed,
        "cluster": prepared.example.cluster,
        "method": method.name,
        "setting": method.setting,
        "extras": job.extras or not methods.takes_extras(method.name),
        "prompt_sha256": prepared.sha256,
        "tokens": prepared.tokens,
        "git_commit": git_commit(),
    }


def prompt_of(job: Job, prepared: Prepared, loaded: LoadedModel) -> prompts.Prompt:
    """As the selection study takes prompts; its name salts the random rows. Of PG-19 all tokens are asked."""
    answer = [] if job.suite == pg19.SUITE.name else _ids(loaded, prepared.example.answer or "\n")
    begin, ids = loaded.tokenizer.bos_token_id, _ids(loaded, prepared.text)
    ids = ids if begin is None else [begin, *ids]
    example = prepared.example
    name = f"{job.suite}/{example.task}/{prepared.length}/{example.index}/{job.seed}"
    return prompts.Prompt(name, job.seed, ids, [] if answer else list(range(1, len(ids))), answer)


def _ids(loaded: LoadedModel, text: str) -> list[int]:
    return loaded.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
