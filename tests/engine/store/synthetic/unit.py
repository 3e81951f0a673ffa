"""One head in one segment: scores of all candidates, the choice of policy "certified", and its fallbacks."""

from __future__ import annotations

import numpy as np
from synthetic.library import DENSE, GATE, LIBRARY, TAU

from routesparse.engine.rows import CandidateScoreRow, FallbackEventRow, HeadChoiceRow


def decide_unit(key, taste, hardness, body, segment, is_last, random):
    """Scores, the choice of policy "certified" and its fallbacks for one unit."""
    families = list(dict.fromkeys(pattern for pattern, *_ in LIBRARY))
    difficulty = float(np.clip(random.normal(hardness, 0.25), 0.02, 1.1))
    masses, recents, costs = [], [], []
    for pattern, _, density in LIBRARY:
        if pattern == "dense":
            masses.append(1.0)
            recents.append(1.0)
        else:
            affinity = 0.4 + taste[families.index(pattern)]
            reach = 1.0 - np.exp(-(density**0.55) * 9.0 * affinity / (0.35 + difficulty))
            masses.append(float(min(0.9995, reach)))
            recents.append(float(np.clip(reach + random.normal(0.0, 0.015), 0.02, 0.9995)))
        costs.append(18.0 + 1450.0 * density * (1.1 if pattern == "vertical_slash" else 1.0))
    spread = float(abs(random.normal(0.02, 0.012)) + 0.002)
    gates = [min(m, r) for m, r in zip(masses, recents, strict=True)]
    order = sorted((i for i in range(len(LIBRARY)) if gates[i] >= GATE), key=lambda i: costs[i])
    tested, events, chosen = {}, [], order[0]
    for test, index in enumerate(order[:3], start=1):
        if index == DENSE:
            chosen = DENSE
            break
        lower = float(np.clip(masses[index] - 0.026 - abs(random.normal(0, 0.012)), 0, 1))
        tested[index] = lower
        chosen = index
        if lower >= TAU:
            break
        step = order[test] if test < 3 and test < len(order) else DENSE
        events.append(
            FallbackEventRow(
                **key,
                test=test,
                from_candidate=index,
                lower_mass=lower,
                tau=TAU,
                kind="dense" if step == DENSE else "expand",
                to_candidate=step,
                paid_us=costs[step] - costs[index],
            )
        )
        chosen = step
        if step == DENSE:
            break
    pattern, budget, density = LIBRARY[chosen]
    sparse = pattern != "dense"
    fallback = events[-1].kind if events else None
    choice = HeadChoiceRow(
        **key,
        first_token=segment * body,
        tokens=body,
        body_tokens=body - (128 if is_last else 0),
        candidate=chosen,
        pattern=pattern,
        budget=budget,
        density=density,
        mass=masses[chosen],
        recent_mass=recents[chosen],
        gate_statistic=gates[chosen],
        lower_mass=tested.get(chosen) if sparse else None,
        conformal_lower_mass=max(0.0, gates[chosen] - 0.043) if sparse else None,
        row_lower_mass=max(0.0, masses[chosen] - 0.11) if sparse else None,
        disagreement=spread,
        entropy=float(3.0 + 2.5 * difficulty + random.normal(0, 0.2)),
        local_band=float(np.clip(taste[0] + 0.2, 0, 1)),
        agreement=float(np.clip(1 - 4 * spread, 0, 1)),
        risk=1 - gates[chosen] + 0.5 * spread,
        kernel_us=costs[chosen],
        tests=len(tested),
        fallback=fallback,
        reason=f"{fallback or 'chosen'}: g = {gates[chosen]:.3f}, {costs[chosen]:.0f} us",
    )
    rows = [
        CandidateScoreRow(
            **key,
            candidate=index,
            pattern=LIBRARY[index][0],
            budget=LIBRARY[index][1],
            density=LIBRARY[index][2],
            mass=masses[index],
            recent_mass=recents[index],
            disagreement=0.0 if index == DENSE else spread,
            predicted_error=None,
            risk=0.0 if index == DENSE else 1 - gates[index] + 0.5 * spread,
            kernel_us=costs[index],
            admissible=gates[index] >= GATE,
            chosen=index == chosen,
            reason="chosen" if index == chosen else f"g {gates[index]:.3f}, {costs[index]:.0f} us",
        )
        for index in range(len(LIBRARY))
    ]
    return choice, rows, events
