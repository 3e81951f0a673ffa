"""Two recordings of decisions, compared value by value."""

from __future__ import annotations

from collections import Counter
from typing import Any


def compare(first: dict[str, Any], second: dict[str, Any]) -> int:
    """Print what differs, by prompt and by field; returns the number of prompts that differ."""
    for name in ("machine", "versions", "salt", "seed", "costs"):
        if first[name] != second[name]:
            print(f"{name} differs: {first[name]} and {second[name]}")
    asked, again = ({p["name"]: p for p in recording["problems"]} for recording in (first, second))
    if asked != again:
        raise SystemExit(
            "the two recordings hold different problems; record the second one with --like the first"
        )
    totals: Counter[str] = Counter()
    prompts: Counter[str] = Counter()
    changed = 0
    for name in asked:
        one, other = first["results"][name], second["results"][name]
        differing = _differences(one, other)
        if not differing:
            continue
        changed += 1
        found = Counter(field for field, _ in differing)
        totals += found
        prompts.update(found.keys())
        layers = sorted({layer for _, layer in differing if layer is not None})
        upstream = "dense" if asked[name]["dense_upstream"] else "routed"
        listed = ", ".join(f"{field} {count}" for field, count in found.most_common())
        print(f"{name} ({upstream} upstream), layers {layers}: {listed}")
    print(f"{len(asked) - changed} of {len(asked)} prompts are equal bit by bit")
    for field, count in totals.most_common():
        print(f"  {field}: {count} values in {prompts[field]} prompts")
    return changed


def _differences(one: dict[str, Any], other: dict[str, Any]) -> list[tuple[str, int | None]]:
    """(field, layer) of every value that differs."""
    found: list[tuple[str, int | None]] = []
    for kind in ("units", "layers"):
        if len(one[kind]) != len(other[kind]):
            found.append((f"number of {kind}", None))
        for a, b in zip(one[kind], other[kind], strict=False):
            found += [(f"{kind}: {key}", a["layer"]) for key in a if a[key] != b.get(key)]
    keys = {**one["candidates"], **other["candidates"]}
    for key in keys:
        if one["candidates"].get(key) != other["candidates"].get(key):
            layer, _, rest = key.partition(", ")
            found.append((rest, int(layer.removeprefix("layer "))))
    if one["logits"] != other["logits"]:
        found.append(("logits", None))
    return found
