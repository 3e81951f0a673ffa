"""EleutherAI's lm-evaluation-harness with a routed model: its tasks, and ours, prefill with RouteSparse.

    make lm-eval
    .venv/bin/python -m routesparse.engine.lab.harness.lm_eval --model routesparse \
        --model_args pretrained=demo,price=1 --include_path engine/lab/harness/lm_eval_include \
        --tasks routesparse_ruler --metadata '{"length":8192,"n":25}'

is the harness's own command line; importing this module makes ``routesparse`` a model of it. pretrained is demo, a
folder or a hub id; policy, price, tau, budget, calibration (a tuned price, too), segment, break_even, profile and
seed are those of ``routesparse analyze``; everything else is as for the harness's model ``hf``.

Contexts prefill routed; generation and the continuations that a task scores are dense (lm_eval_routed.py).
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

# Before torch is loaded, as the command line does (engine/cli/main.py): three times as fast on two busy cores.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
# Where `make lm-eval` puts the harness: last, so that no other package changes; and before transformers is loaded,
# which looks only once for a package that the harness brings.
sys.path.append(str(Path(sys.prefix, "lm-eval")))

import torch
from tqdm import tqdm

from routesparse.engine.config import LatencyBudget, Policy, RouterConfig, certified_mass, default_segment
from routesparse.engine.errors import InputError, RouteSparseError
from routesparse.engine.lab.harness.lm_eval_routed import Answer, RoutedModel
from routesparse.engine.models.files import DEMO, check_folder, resolve
from routesparse.engine.models.load import load_tokenizer
from routesparse.engine.terminal import printable

try:
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.api.registry import register_model
    from lm_eval.models.huggingface import HFLM
except ImportError as error:
    raise ImportError(
        f"lm-evaluation-harness can't be imported ({error}); install it with `make lm-eval`"
    ) from error

Request = tuple[tuple[str, str] | None, list[int], list[int]]  # its text, context, continuation


@register_model("routesparse")
class RouteSparseLM(HFLM):
    """The harness's model for transformers, with prefills routed.

    dtype: by default float32 on a CPU and bfloat16 on a GPU, as everywhere here; the harness's would be the file's own.
    add_bos_token: by default wherever the tokenizer has one. Errors: InputError, of all that is wrong with an argument.
    """

    def __init__(
        self,
        pretrained: str = DEMO,
        *,
        policy: Policy = RouterConfig.policy,
        price: float | None = None,
        tau: float | None = None,
        budget: str | float | None = None,
        calibration: str | None = None,
        segment: int | None = None,
        break_even: int | None = None,
        profile: str = "auto",
        seed: int = 0,
        device: str | None = None,
        dtype: str | None = None,
        add_bos_token: bool | None = None,
        batch_size: int | str = 1,
        **of_hf: Any,
    ) -> None:
        if str(batch_size).startswith("auto"):
            raise InputError(f"batch_size {batch_size!r} would be found with dense attention; pass a number")
        for name in ("trust_remote_code", "delta", "peft", "gguf_file"):
            if of_hf.get(name):
                raise InputError(f"{name} is not supported: pretrained must be a whole model in safetensors")
        if of_hf.get("revision", "main") != "main":
            raise InputError(f"revision {of_hf['revision']!r}: pass that revision's folder as pretrained")
        # The harness asks for a GPU where nobody names a device, whether there is one or not.
        if device is None or (device.startswith("cuda") and not torch.cuda.is_available()):
            device = "cuda:0" if torch.cuda.is_available() else "cpu"
        on_gpu = device.startswith("cuda")
        config = RouterConfig(
            policy=policy,
            **certified_mass(policy, tau),
            price=RouterConfig.price if price is None else price,
            budget=None if budget is None else LatencyBudget.parse(str(budget)),
            segment_tokens=default_segment(on_gpu) if segment is None else segment,
            break_even_tokens=break_even,
            seed=seed,
        )
        folder, _ = resolve(pretrained)
        check_folder(folder)
        if add_bos_token is None and load_tokenizer(pretrained).tokenizer.bos_token_id is not None:
            add_bos_token = True
        super().__init__(
            str(folder),
            device=device,
            dtype=dtype or ("bfloat16" if on_gpu else "float32"),
            add_bos_token=add_bos_token,
            batch_size=batch_size,
            **of_hf,
        )
        self._routed = RoutedModel(self.model, config, calibration=calibration, profile=profile)

    def get_model_info(self) -> dict[str, Any]:
        """Beside the harness's own facts how prompts were routed; it stands in the results under ``config``."""
        return {**super().get_model_info(), "routesparse": self._routed.about()}

    def _autocast(self) -> AbstractContextManager[Any]:
        asked = self.mixed_precision_dtype
        return torch.autocast(device_type=self.device.type, dtype=asked, enabled=asked is not None)

    def _model_generate(
        self, context: torch.Tensor, max_length: int, stop: list[str], **others: Any
    ) -> torch.Tensor:
        """context [B, n], padded on the left; returns [B, n + generated]."""
        with self._routed.prompt(context):
            return super()._model_generate(context, max_length, stop, **others)

    def _loglikelihood_tokens(
        self, requests: list[Request], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[Answer]:
        """Each context once, the longest first. Requests without a text are windows of a rolling perplexity."""
        found: dict[int, Answer] = {}
        by_context: dict[tuple[int, ...], list[int]] = defaultdict(list)
        bar = tqdm(total=len(requests), disable=disable_tqdm or self.rank != 0, desc="log-likelihoods")
        with self._autocast(), bar:
            for place, (text, context, continuation) in enumerate(requests):
                if len(continuation) > self.max_length:
                    raise InputError(
                        f"a continuation of {len(continuation):,} tokens is longer than max_length {self.max_length:,}"
                    )
                kept = context[-(self.max_length + 1 - len(continuation)) :]
                if text is None:
                    found[place] = self._routed.window(kept, continuation)
                    bar.update()
                else:
                    by_context[tuple(kept)].append(place)
            for shared in sorted(by_context, key=len, reverse=True):
                places = by_context[shared]
                answers = self._routed.continuations(shared, [requests[place][2] for place in places])
                for place, answer in zip(places, answers, strict=True):
                    found[place] = answer
                    self.cache_hook.add_partial("loglikelihood", requests[place][0], answer)
                bar.update(len(places))
        return [found[place] for place in range(len(requests))]


def main() -> int:
    """The harness's command line; the exit code."""
    try:
        cli_evaluate()
    except RouteSparseError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
