"""Write data/results/{CPU,GPU,TRUST,CERTIFY}.md and README's three numbers.

python -m routesparse.engine.lab.reports.report            # print the README's numbers
python -m routesparse.engine.lab.reports.report --write    # replace them and the pages whose studies were run

No figure in these places is typed by hand; tests/engine/lab/test_report.py compares them with what this writes.
"""

from __future__ import annotations

import argparse
import csv
import textwrap

from routesparse.engine import paths
from routesparse.engine.lab.reports import (
    report_certify,
    report_cpu,
    report_gpu,
    report_trust,
)
from routesparse.engine.lab.reports.result_files import COMMAND, RESULTS, read

BEGIN, END = f"<!-- measured: {COMMAND} -->", "<!-- /measured -->"


def main(argv: list[str] | None = None) -> None:
    """Print the three numbers, or write them between the README's marks and the pages into data/results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", action="store_true", help="replace the pages and the README's numbers")
    numbers = "\n".join(three_numbers())
    if not parser.parse_args(argv).write:
        print(numbers)
        return
    for page in (report_cpu, report_gpu, report_trust, report_certify):
        page.write()
    readme = paths.REPOSITORY / "README.md"
    before, rest = readme.read_text().split(BEGIN, 1)
    _, after = rest.split(END, 1)
    readme.write_text(f"{before}{BEGIN}\n{numbers}\n{END}{after}")


def three_numbers() -> list[str]:
    """Wrapped lines of three list items: the CPU, the GPU and the certificate, each with what it does not say."""
    return [
        line
        for number, says, says_not in (_cpu(), report_gpu.headline(), _certificate())
        for line in textwrap.wrap(
            f"- {number}: {says} {says_not}",
            width=150,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]


def _cpu() -> tuple[str, str, str]:
    result = read("prefill_cpu.json")
    routed = [row for row in result["rows"] if row["density"] is not None]
    (tokens,) = {row["tokens"] for row in routed}
    ratios, kept = ([row[name] for row in routed] for name in ("ratio", "density"))
    return (
        f"**{min(ratios):.2f} to {max(ratios):.2f}x**",
        f"dense / routed prefill of {tokens:,} tokens, bundled model, {result['threads']} threads of an "
        f"{result['device']}, policy {report_cpu.policy(result)}; "
        f"{100 * min(kept):.0f} to {100 * max(kept):.0f} % of the causal area is kept ([CPU](data/results/CPU.md)).",
        "*Not* a claim about large models: this one has 15.7M parameters. Shorter prompts gain less; below the length "
        f"at which routing is predicted to pay, {report_cpu.shipped_break_even():,} tokens, they run dense.",
    )


def _certificate() -> tuple[str, str, str]:
    result = read("coverage.json")
    if report_trust.is_priced(result):
        (wrong, layers), (wrong_heads, heads) = _claims("certified_layers"), _claims("sparse_units")
        return (
            f"**{wrong} of {layers:,}**",
            "certificates of layers that promised more mass than exact attention then showed; of heads, "
            f"{wrong_heads} of {heads:,}. At 95 % confidence 5 % may be wrong ([TRUST](data/results/TRUST.md)).",
            "*Not* a promise about answers. A layer's certificate is about the mean over its heads and query rows: a "
            "single head or row may lose more. On these windows no bound was so low that a layer or a head had to be "
            "given more.",
        )
    above, tests, allowed = report_trust.bound_errors(result)
    return (
        f"**{above} of {tests:,}**",
        f"certificates that promised more mass than exact attention then showed; {allowed:.0f} could have, and the "
        "confidence of 95 % would still hold "
        "([TRUST](data/results/TRUST.md)).",
        "*Not* a promise about answers. A certificate covers one head of one layer, given the Q, K and V that reached "
        "that layer, and the mean over query rows: a single row may lose more.",
    )


def _claims(counted: str) -> tuple[int, int]:
    """How many claims were wrong, and how many were made, over all test windows: of layers or of sparse heads."""
    held = {"certified_layers": "in_prompt_layers", "sparse_units": "in_prompt"}[counted]
    with (RESULTS / "coverage_windows.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row[held]]
    made = [int(float(row[counted])) for row in rows]
    wrong = [round(count * (1 - float(row[held]))) for count, row in zip(made, rows, strict=True)]
    return sum(wrong), sum(made)


if __name__ == "__main__":
    main()
