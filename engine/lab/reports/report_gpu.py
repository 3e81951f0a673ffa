"""data/results/GPU.md: targets beside measurements on one GPU, and every table behind them."""

from __future__ import annotations

from routesparse.engine.lab.reports.gpu_results import compiled_ends, routed_runs
from routesparse.engine.lab.reports.report_gpu_tables import deciding, demo, kernel, prefill
from routesparse.engine.lab.reports.report_gpu_targets import targets
from routesparse.engine.lab.reports.result_files import read, write_page


def write() -> None:
    """Replace data/results/GPU.md."""
    lines = [*targets(), *kernel(), *prefill(), *deciding(), *demo()]
    write_page("GPU.md", "Measured on a GPU", lines)


def headline() -> tuple[str, str, str]:
    """For the README: prefills whose plans the router chose, and what the 8B shape's forced plans do not say."""
    runs, ends = routed_runs(), compiled_ends()
    ratios, lengths = ([run[name] for run in runs] for name in ("paired_ratio", "tokens"))
    recorded = ends[131_072, "recorded"]
    return (
        f"**{min(ratios):.2f} to {max(ratios):.2f}x**",
        f"dense / routed prefill of {' and '.join(f'{n:,}' for n in lengths)} tokens, bundled model, one "
        f"{read('gpu_demo.json')['device']}, bfloat16; {_routed_densities()} is kept "
        "([GPU](data/results/GPU.md)).",
        f"*Not* the speed-up of an 8B model. At that shape, random weights and this model's plans "
        f"({100 * recorded['density']:.0f} %) were {recorded['speedup_over_cudnn']:.2f} times as fast as cuDNN's dense "
        "prefill at 131,072 tokens, deciding included. This model was trained to 65,536 tokens.",
    )


def _routed_densities() -> str:
    kept = [run["density"] for run in routed_runs()]
    low, high = (f"{100 * share:.0f}" for share in (min(kept), max(kept)))
    return f"{low if low == high else f'{low} to {high}'} % of the causal area"
