"""Does the in-prompt certificate hold on documents that nothing was calibrated on?

    python -m routesparse.engine.evaluation.certificates --out data/results/certificates.json

Per domain: windows of test documents are routed at the default setting (below break-even too); for every selected
sparse unit the true mean mass of its body is audited on random rows and compared with the certificate of its own
prompt. "needles" are needles among needles. Every window draws its own rows. Coverage is per unit, averaged per
prompt; prompts of one document are resampled together (cluster bootstrap over documents).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from routesparse.engine.config import RouterConfig
from routesparse.engine.coverage_stats import clustered_interval
from routesparse.engine.demo_model.tasks import fit_sample
from routesparse.engine.evaluation import study
from routesparse.engine.evaluation.windows import Window, windows
from routesparse.engine.hf import routed_by
from routesparse.engine.models import LoadedModel, load_model
from routesparse.engine.session import RoutingSession

DOMAINS = ("prose", "code", "dialog", "docs", "needles")


def main(argv: list[str] | None = None) -> None:
    """Run the study and write its file."""
    parser = study.parser(__doc__)
    parser.add_argument("--tokens", type=int, default=4_096)
    parser.add_argument("--windows", type=int, default=60)
    parser.add_argument("--domains", nargs="+", default=list(DOMAINS))
    parser.add_argument("--audit-rows", type=int, default=1_024)
    parser.add_argument("--tau", type=float, default=0.9)
    parser.add_argument("--gate", type=float, default=None)
    arguments = parser.parse_args(argv)
    loaded = load_model(arguments.model)
    config = RouterConfig(tau=arguments.tau, gate=arguments.gate, seed=arguments.seed, break_even_tokens=0)
    result: dict[str, Any] = {
        **study.header(loaded, arguments),
        "tokens": arguments.tokens,
        "audit_rows": arguments.audit_rows,
        "config": config.to_dict(),
        "domains": {},
    }
    for domain in arguments.domains:
        prompts = [
            measure(loaded, window, config, arguments.audit_rows)
            for window in domain_windows(domain, loaded, arguments)
        ]
        result["domains"][domain] = summary = summarise(prompts, arguments.seed)
        study.note(f"{domain}: {summary}")
        study.save(arguments.out, result)


def domain_windows(domain: str, loaded: LoadedModel, arguments: Any) -> Iterator[Window]:
    """Windows of one domain's test documents; "needles" are needles among needles, each its own document."""
    if domain != "needles":
        yield from windows(
            arguments.data,
            domain,
            "test",
            arguments.tokens,
            arguments.windows,
            loaded.tokenizer,
            arguments.seed,
        )
        return

    def count(text: str) -> int:
        return len(loaded.tokenizer(text, add_special_tokens=False)["input_ids"])

    for index in range(arguments.windows):
        task = ("niah_multikey_2", "niah_multikey_3")[index % 2]
        sample = fit_sample(
            task, arguments.tokens, count_tokens=count, haystack="", seed=arguments.seed + 77, index=index
        )
        ids = loaded.tokenizer(sample.prompt + sample.answer_prefix, add_special_tokens=False)["input_ids"]
        yield Window("needles", f"{task}-{index}", 0, (loaded.tokenizer.bos_token_id or 0, *ids))


def measure(loaded: LoadedModel, window: Window, config: RouterConfig, rows: int) -> dict[str, Any]:
    """Route one window and audit it."""
    session = RoutingSession(config, audit="rows", audit_rows=rows, salt=f"{window.document}/{window.start}")
    with torch.no_grad(), routed_by(loaded.model, session):
        loaded.model(
            torch.tensor([window.token_ids], device=loaded.model.device), logits_to_keep=1, use_cache=False
        )
    record = session.trace.record()
    audits = record.audits
    choices = {(c.layer, c.head, c.segment): c for c in record.choices}
    chosen = [choices[a.layer, a.head, a.segment] for a in audits]
    return {
        "document": window.document,
        "tokens": len(window.token_ids),
        "density": record.run.density,
        "units": record.run.units,
        "sparse": record.run.sparse_units,
        "expanded": record.run.expanded_units,
        "dense_fallback": record.run.dense_fallback_units,
        "dense_router": record.run.dense_router_units,
        "covered": [bool(a.covered) for a in audits],
        "gap": [a.mass - (a.lower_mass or 0.0) for a in audits],
        "mass": [a.mass for a in audits],
        "below_tau": [a.mass < config.tau for a in audits],
        "error": [a.mean_error for a in audits],
        "violations": sum(a.violations for a in audits),
        "rows": sum(a.rows for a in audits),
        "looseness": [a.bound_tight / max(a.max_error, 1e-9) for a in audits],
        "patterns": [c.pattern for c in chosen],
    }


def summarise(prompts: list[dict[str, Any]], seed: int) -> dict[str, Any]:
    """Coverage with spread over prompts and a clustered interval, gap, density and what it cost."""
    sparse = [p for p in prompts if p["covered"]]
    coverage = np.array([np.mean(p["covered"]) for p in sparse])
    documents = sorted({p["document"] for p in sparse})
    low, high = clustered_interval(coverage, [p["document"] for p in sparse], seed)
    units = sum(p["units"] for p in prompts)
    gaps = np.concatenate([p["gap"] for p in prompts])
    families = [f for p in prompts for f in p["patterns"]]
    return {
        "windows": len(prompts),
        "windows_without_a_sparse_unit": len(prompts) - len(sparse),
        "documents": len(documents),
        "selected_sparse_units": len(gaps),
        "uncovered_units": sum(not c for p in sparse for c in p["covered"]),
        "documents_with_an_uncovered_unit": len({p["document"] for p in sparse if not all(p["covered"])}),
        "coverage": float(coverage.mean()),
        "coverage_interval": [low, high],
        "coverage_sd_over_prompts": float(coverage.std()),
        "coverage_min_prompt": float(coverage.min()),
        "median_gap": float(np.median(gaps)),
        "p95_gap": float(np.quantile(gaps, 0.95)),
        "mean_mass": float(np.mean([m for p in prompts for m in p["mass"]])),
        "share_below_tau": float(np.mean([b for p in prompts for b in p["below_tau"]])),
        "density": float(np.mean([p["density"] for p in prompts])),
        "expanded_share": sum(p["expanded"] for p in prompts) / units,
        "dense_fallback_share": sum(p["dense_fallback"] for p in prompts) / units,
        "dense_router_share": sum(p["dense_router"] for p in prompts) / units,
        "mean_relative_error": float(np.mean([e for p in prompts for e in p["error"]])),
        "bound_violations": sum(p["violations"] for p in prompts),
        "audited_rows": sum(p["rows"] for p in prompts),
        "median_looseness_tight": float(np.median(np.concatenate([p["looseness"] for p in prompts]))),
        "families": {name: families.count(name) / max(1, len(families)) for name in sorted(set(families))},
    }


if __name__ == "__main__":
    main()
