"""``routesparse certify``: what an attention function or a foreign plan does to a prompt."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from routesparse.engine import paths, shared_folder
from routesparse.engine.cli.checks import read_prompt_for, writable_folder
from routesparse.engine.cli.options import BundleFolder, JsonFlag, ModelName, PromptNumber
from routesparse.engine.cli.output import Reporter, out_console, print_json
from routesparse.engine.errors import ConfigError, first_line
from routesparse.engine.rounding import all_digits, at_least, at_most
from routesparse.engine.seeds import stable_seed

if TYPE_CHECKING:
    from routesparse.engine.certification.record import About
    from routesparse.engine.certification.report import Certified
    from routesparse.engine.config import RouterConfig
    from routesparse.engine.models.load import LoadedModel
    from routesparse.engine.prompts.text import Prompt

_OWN = "routesparse"


def certify(
    prompt: Annotated[Path, typer.Option("--prompt", help="The prompt: a text file in UTF-8, or a .jsonl.")],
    model: ModelName = "demo",
    number: PromptNumber = None,
    attention: Annotated[
        str | None,
        typer.Option(help="transformers' name of an attention function: sdpa, eager, flash_attention_2, ..."),
    ] = None,
    mask: Annotated[
        Path | None,
        typer.Option(help="Run and certify a block mask: .npy [layers, heads, M, N], or .safetensors."),
    ] = None,
    block_q: Annotated[int | None, typer.Option(help="Query rows of its blocks; default 128.", min=1)] = None,
    block_k: Annotated[int | None, typer.Option(help="Keys of the mask's blocks; default 64.", min=1)] = None,
    minference: Annotated[
        Path | None, typer.Option(help="Run and certify MInference with the head patterns of this JSON file.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="Run and certify a published rule, NAME or NAME=SETTING, such as xattention=0.9."),
    ] = None,
    served: Annotated[
        Path | None,
        typer.Option(
            help="Run and certify what a checkpoint's config.json serves, or a JSON of our settings."
        ),
    ] = None,
    rows: Annotated[int, typer.Option(help="Random rows of each head that are scored exactly.")] = 64,
    rows_at: Annotated[
        list[str] | None,
        typer.Option(help="Rows to score beside random ones: 16000:16384 in tokens, or last:64. Repeatable."),
    ] = None,
    rows_of: Annotated[
        list[str] | None,
        typer.Option(help="The same by a phrase that the prompt has once, such as its question. Repeatable."),
    ] = None,
    no_text: Annotated[bool, typer.Option("--no-text", help="Keep the text of named rows out.")] = False,
    confidence: Annotated[float, typer.Option(help="Confidence of each claim.")] = 0.95,
    tolerance: Annotated[
        float | None,
        typer.Option(help="Relative output error that a row may have; without: rounding, as information."),
    ] = None,
    most_beyond: Annotated[float, typer.Option(help="Share of rows that may exceed the tolerance.")] = 0.01,
    mass_level: Annotated[
        float, typer.Option(help="Of a plan: rows of less retained mass are counted.")
    ] = 0.5,
    seed: Annotated[
        int, typer.Option(help="Places rows, by the prompt's hash.", min=-(2**63), max=2**63 - 1)
    ] = 0,
    out: BundleFolder = None,
    json_output: JsonFlag = False,
) -> None:
    """Certify any attention on a prompt: output error, and of a plan retained mass and largest keys.

    Writes a bundle that the dashboard shows on the page Trust. Exit code 1 where the output holds NaN or
    Inf, or --tolerance is not kept.
    """
    report = Reporter()
    plans = {"--attention": attention, "--mask": mask, "--minference": minference, "--method": method}
    plans["--served"] = served
    given = [name for name, value in plans.items() if value is not None]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} are different attentions; pass one of them")
    if mask is None and (block_q or block_k):
        raise ConfigError("--block-q and --block-k belong to --mask; pass a mask, or leave them out")
    report.line(f"reading {prompt.name}")
    from routesparse.engine.prompts.text import tokenize

    text = read_prompt_for(model, prompt, number, report)
    from routesparse.engine.certification.report import Settings

    Settings(confidence, mass_level, tolerance, most_beyond)
    from routesparse.engine.certification.named_rows import check_within, read_names, rows_of_phrase

    read_names(rows_at or ())
    plan = _plan(mask, block_q, block_k, minference, method)
    if served is not None:
        from routesparse.engine.certification.served import read_served

        plan = _Plan(served.name, served=read_served(served))
    target = writable_folder(shared_folder.check(out))
    from routesparse.engine.models.token_count import refuse_before_loading

    refuse_before_loading(model, text)
    report.line(f"loading model {model}")
    from routesparse.engine.models.load import load_model

    loaded = load_model(model)
    tokens = tokenize(text, loaded.tokenizer, loaded.max_tokens)
    report.line(f"{tokens.tokens:,} tokens, {loaded.layers} layers of {loaded.heads} heads, {loaded.device}")
    labels = [*(rows_at or ()), *(rows_of_phrase(tokens, phrase) for phrase in rows_of or ())]
    check_within(read_names(labels), tokens.tokens)
    import torch

    from routesparse.engine.certification.certify import certify as certified
    from routesparse.engine.runtime import replay
    from routesparse.engine.runtime.loss import of_anybody

    ids = torch.as_tensor(tokens.token_ids, dtype=torch.long, device=loaded.device)[None]
    watching = certified(
        loaded.model,
        plan=plan.of_layer,
        plan_name=plan.name,
        plan_note=plan.fit(loaded, tokens.tokens),
        rows=rows,
        rows_at=labels,
        confidence=confidence,
        mass_level=mass_level,
        tolerance=tolerance,
        most_beyond=most_beyond,
        seed=seed,
        hold=True,
    )
    stretches = replay.rows_of(tokens.tokens - 1, stable_seed("replay", seed, tokens.sha256))
    with ExitStack() as stack:
        hidden = None
        if stretches is not None:
            at = torch.from_numpy(stretches.flatten()).to(loaded.device)
            hidden = stack.enter_context(replay.hidden_at(loaded.model, at))
        stack.enter_context(_attention(loaded.model, attention))
        stack.enter_context(torch.no_grad())
        stack.enter_context(plan.serving(loaded.model))
        found = stack.enter_context(watching)
        loaded.model(ids, logits_to_keep=1, use_cache=False)
    loss = None
    if hidden is not None and found.kept is not None:
        loss = of_anybody(loaded, ids, found.kept, hidden, plan.config)
    found.kept = None
    _check_used(found.last)
    asked: dict[str, Any] = {"attention": attention, "method": method, "plan": plan.name}
    asked |= {"block_q": block_q, "block_k": block_k, "rows_at": labels or None}
    asked["served"] = None if served is None else found.last.plan_note
    asked["router"] = None if plan.config is None else plan.config.to_dict()
    if not json_output:
        _print(found.last)
        _print_loss(loss)
    found.about = _about(loaded, tokens, asked, keep_text=not no_text)
    bundle = found.to_bundle(target)
    if json_output:
        told = {"run_id": bundle.name, "model": loaded.name, "device": loaded.device}
        print_json({**told, **found.last.as_dict(), "loss": loss, "bundle": str(bundle)})
    else:
        after = "" if target == paths.spool() else "after `routesparse ingest` "
        print(f"{after}the dashboard shows it on the page Trust, run {bundle.name[-8:]}\n{bundle}")
    verdict = found.last.verdict
    if verdict.level == "broken" or (tolerance is not None and not verdict.passed):
        raise typer.Exit(1)


def _check_used(found: Certified) -> None:
    """Errors: ConfigError where no layer read by the plan, so that dense attention would be certified in its name."""
    if found.plan is not None and len(found.dense_layers) == len(found.layers):
        raise ConfigError(
            f"{found.plan} left all {len(found.layers)} layers dense, so there is no plan to certify: rules serve no "
            "layers with a sliding window, and some no short prompts; pass another plan, model or prompt"
        )


def _about(loaded: LoadedModel, prompt: Prompt, asked: dict[str, Any], *, keep_text: bool) -> About:
    """What the bundle says besides what was found."""
    from routesparse.engine.certification.record import About

    config = {name: value for name, value in asked.items() if value is not None}
    text_of = prompt.token_text if keep_text else None
    model = (loaded.name, loaded.revision, loaded.tokenizer_hash)
    return About(*model, prompt.name, prompt.sha256, config, text_of)


class _Plan:
    """What serves the model and what it reads; nothing of either where the model's own attention is certified."""

    def __init__(
        self, name: Any = None, router: Any = None, routed: bool = False, served: Any = None
    ) -> None:
        self.name, self._router, self._served = name, router, served
        self._routed = routed or isinstance(served, dict)
        self.config: RouterConfig | None = None  # of our router, once it serves
        # A router knows the row plan of the layer that it has just served.
        unplanned = self._routed or (router, served) == (None, None)
        self.of_layer = None if unplanned else lambda layer: self._router.plan

    def fit(self, loaded: LoadedModel, tokens: int) -> str | None:
        """Make what a checkpoint serves at this length; what the report says beside the plan. Errors: ConfigError."""
        if self._served is None or self._routed:
            return self._note(loaded.layers, loaded.heads)
        from routesparse.engine.certification.served import TILE_KEYS
        from routesparse.engine.lab.rivals.rule import RuleRouter
        from routesparse.engine.lab.rivals.skip_softmax import SkipSoftmax
        from routesparse.engine.runtime.transformers import attention_modules

        names = {module: name for name, module in loaded.model.named_modules()}
        modules = [(module.layer_idx, names[module]) for module in attention_modules(loaded.model)]
        threshold, dense = self._served.of(tokens, modules)
        self._router = RuleRouter(SkipSoftmax(threshold, TILE_KEYS, dense), extras=False)
        return (
            f"{self.name} serves skip-softmax at threshold {threshold:.3g} ({self._served.told} over {tokens:,} "
            f"tokens), {len(dense)} of {loaded.layers} layers dense. It ran on our kernel, in the 128 x {TILE_KEYS} "
            "tiles of NVIDIA's Triton kernel, the diagonal always read; other kernels have other tiles, and a server "
            "that batches or chunks prompts may divide by another length"
        )

    def _note(self, layers: int, heads: int) -> str | None:
        """How many of the model's heads a file of head patterns leaves out. Errors: ConfigError."""
        rule: Any = getattr(self._router, "rule", None)
        filled = rule.filled(layers, heads) if hasattr(rule, "filled") else 0
        if not filled:
            return None
        return (
            f"{self.name} names {layers * heads - filled} of {layers * heads} heads; the other {filled} read the "
            f"default, {rule.default.columns:,} columns and {rule.default.slashes:,} slashes"
        )

    @contextmanager
    def serving(self, model: Any) -> Iterator[None]:
        """The model is served by this plan inside the block."""
        from routesparse.engine.runtime.transformers import routed_by

        with ExitStack() as stack:
            if self._routed:
                from routesparse.engine.calibration import fitted
                from routesparse.engine.config import default_config
                from routesparse.engine.models.load import revision_of_model
                from routesparse.engine.runtime.route import route

                ours = {"break_even_tokens": 0} if self._served is None else self._served
                self.config = default_config(next(model.parameters()).is_cuda, **ours)
                # A server has the head floors of its settings, and no others.
                if self._served is None and (fit := fitted.of_model(revision_of_model(model))) is not None:
                    self.config = fit.floored(self.config)
                trace = stack.enter_context(route(model, self.config))
            elif self._router is not None:
                stack.enter_context(routed_by(model, self._router))
            yield
            if self._routed and self._served and not trace.record().run.routed:
                raise ConfigError(
                    f"{self.name} serves this prompt dense; pass a longer one, or break_even_tokens"
                )


def _plan(
    mask: Path | None, block_q: int | None, block_k: int | None, minference: Path | None, method: str | None
) -> _Plan:
    """Errors: ConfigError."""
    if mask is not None:
        from routesparse.engine.certification.mask_files import read_masks
        from routesparse.engine.certification.mask_router import MaskRouter
        from routesparse.engine.certification.reads import BLOCK

        masks = read_masks(mask)
        return _Plan(masks.name, MaskRouter(masks, masks.block(block_q, block_k, BLOCK)))
    if minference is None and method is None:
        return _Plan()
    if method == _OWN:
        return _Plan(_OWN, routed=True)
    from routesparse.engine.lab.rivals.rule import RuleRouter

    if minference is not None:
        from routesparse.engine.certification.minference_heads import heads_from_json
        from routesparse.engine.lab.rivals.minference import MInference

        return _Plan(minference.name, RuleRouter(MInference(heads_from_json(minference)), extras=False))
    return _Plan(method, RuleRouter(_rule(str(method)), extras=False))


def _rule(method: str) -> Any:
    """A published rule by name, at its first setting where none is given. Errors: ConfigError."""
    from routesparse.engine.lab.studies.selection import methods

    name, _, value = method.partition("=")
    if name not in methods.RULES:
        raise ConfigError(f"method {name!r} is unknown; use {_OWN} or one of {', '.join(methods.RULES)}")
    try:
        setting = float(value) if value else methods.settings(name)[0]
    except ValueError:
        raise ConfigError(f"method {method!r} has no number behind '='; write {name}=0.9") from None
    known = methods.settings(name)
    whole = isinstance(known[0], int)
    if not 0 < setting < math.inf or (whole and setting != int(setting)):
        raise ConfigError(
            f"method {method!r} needs a {'whole ' * whole}number above 0 behind '='; write {name}={known[0]:g}"
        )
    return methods.find(name, setting).rule


@contextmanager
def _attention(model: Any, name: str | None) -> Iterator[None]:
    """The model with another attention function of transformers. Errors: ConfigError."""
    before = model.config._attn_implementation
    if name is not None:
        try:
            model.set_attn_implementation(name)
        except (ValueError, ImportError, KeyError) as error:
            raise ConfigError(f"attention {name!r} can't be used here: {first_line(error)}") from error
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _print(found: Certified) -> None:
    console = out_console()
    planned = found.plan is not None
    names = ["layer", "mean min(error, 1)", "at most", "largest", "beyond rounding"]
    names += ["mass", "at least", "largest key hit", "at least"] if planned else []
    confidence = all_digits(found.settings.confidence, percent=True)
    table = Table(*names, caption=f"at most, at least: at {confidence} confidence each")
    for claims in (*found.by_layer, found.run):
        cells = ["all" if claims.layer is None else str(claims.layer)]
        cells += [f"{claims.mean_error:.2g}", at_most(claims.mean_error_bound), f"{claims.largest_error:.2g}"]
        cells.append(f"{claims.beyond_rounding} of {claims.rows:,}")
        if planned:
            plan: Any = claims  # its columns of a plan are there together
            cells += [f"{plan.mass:.3f}", at_least(plan.mass_bound)]
            cells += [f"{plan.hit_rate:.1%}", at_least(plan.hit_rate_bound, percent=True)]
        table.add_row(*cells)
    console.print(table)
    if found.run.beyond_rounding:
        console.print("worst heads: " + "; ".join(_head(claims) for claims in found.worst_heads()))
    for line in found.verdict.findings:
        console.print(line, soft_wrap=True)
    if found.verdict.level != "exact" and not found.named:
        console.print(
            "random rows say little of one answer: --rows-of 'its question' or --rows-at last:64 scores rows you name"
        )
    subject = f"attention {found.name!r}" + (f" by {found.plan}" if planned else "")
    console.print(f"{subject}: {found.verdict.level}: {found.verdict.sentence}", soft_wrap=True)


def _print_loss(loss: dict[str, Any] | None) -> None:
    if loss is None:
        return
    by = "a stated factor: the model is not fitted" if loss["loss_fit"] is None else "the factor of its fit"
    bound = "no bound" if loss["loss_bound"] is None else f"at most {loss['loss_bound']:.4f} (95%)"
    told = f"predicted loss {loss['loss_nats']:.4f} nats a token, {bound}, by {by}"
    out_console().print(f"{told}; {loss['replayed_rows']} rows replayed", soft_wrap=True)


def _head(claims: Any) -> str:
    told = f"layer {claims.layer} head {claims.head} mean min(error, 1) {claims.mean_error:.2g}"
    return told + ("" if claims.mass is None else f", mass {claims.mass:.3f}")
