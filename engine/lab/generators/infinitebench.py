"""InfiniteBench's six generated tasks: context, question and answer of an index.

    passkey, number_string   one line among repeated noise lines states five digits, or ten in which digits repeat
    kv_retrieval             a JSON object of UUIDs; one key is asked
    math_find                integers from 0 to 99; a rank or the median is asked
    math_calc                a sum of integers, all partial results between 0 and 99; they are the answer
    code_run                 one-line functions that call one another in layers; the value of one call is asked

Places sweep the context as multiples of the golden ratio, so that they spread evenly over any number of prompts.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable
from typing import Any

from routesparse.engine.lab.generators.needles import NOISE

GOLDEN = 0.618033988749895
RANKS = (
    *("largest", "second largest", "third largest"),
    *("smallest", "second smallest", "third smallest", "median"),
)
CALL_DEPTHS = (2, 4, 6, 8, 10)
Made = tuple[str, str, Any]  # context, question, answer
_NEEDLES = {
    "passkey": ("The pass key is {key}. Remember it. {key} is the pass key.", "What is the pass key?"),
    "number_string": (
        "The sequence of digits is {key}. Remember it. {key} is the sequence of digits.",
        "What is the sequence of digits?",
    ),
}


def _depth(index: int, places: int) -> int:
    return int(index * GOLDEN % 1 * places)


def _noise(task: str) -> Callable[[random.Random, int, int], Made]:
    def make(rng: random.Random, units: int, index: int) -> Made:
        digits = [rng.choice("0123456789") for _ in range(5)]
        if task == "number_string":
            for _ in range(5):
                place = rng.randrange(len(digits))
                digits.insert(place, digits[place])
        needle, question = _NEEDLES[task]
        key = "".join(digits)
        lines = [NOISE] * units
        lines.insert(_depth(index, units + 1), needle.format(key=key))
        return "\n".join(lines), question, key

    return make


def _pairs(rng: random.Random, units: int, index: int) -> Made:
    drawn = [str(uuid.UUID(int=rng.getrandbits(128), version=4)) for _ in range(2 * units)]
    values = dict(zip(drawn[::2], drawn[1::2], strict=True))
    key = drawn[2 * _depth(index, units)]
    question = f'Key: "{key}"\nThe value associated with the specified key is: '
    return f"JSON data:\n{json.dumps(values)}", question, values[key]


def _ranked(rng: random.Random, units: int, index: int) -> Made:
    """The three largest and the three smallest values differ from prompt to prompt and occur once each."""
    drawn = sorted(rng.sample(range(100), 40))
    # Odd, so that the median is one of them.
    numbers = [rng.choice(drawn[3:-3]) for _ in range((units - 6) | 1)]
    for rare in (*drawn[:3], *drawn[-3:]):
        numbers.insert(rng.randrange(len(numbers) + 1), rare)
    rank = RANKS[index % len(RANKS)]
    if rank == "median":
        answer = sorted(numbers)[len(numbers) // 2]
    else:
        place = {"second": 1, "third": 2}.get(rank.split()[0], 0)
        answer = drawn[-1 - place] if rank.endswith("largest") else drawn[place]
    return json.dumps(numbers), f"What is the {rank} number in the list above?", answer


def _sums(rng: random.Random, units: int, index: int) -> Made:
    total = rng.randint(0, 99)
    text, partial = [str(total)], [total]
    for _ in range(units - 1):
        change = rng.randint(-total, 99 - total)
        text.append(f"{'-' if change < 0 else '+'} {abs(change)}")
        total += change
        partial.append(total)
    return " ".join(text), "", partial


def _functions(rng: random.Random, units: int, index: int) -> Made:
    """Layers of functions: one of layer k returns one of layer k - 1 plus a constant; layer 0 returns x plus one."""
    layers = CALL_DEPTHS[-1]
    names = [f"func_{number}" for number in rng.sample(range(10 * units), units)]
    constants = {name: rng.choice([c for c in range(-12, 18) if c]) for name in names}
    of_layer = [names[layer::layers] for layer in range(layers)]
    calls = {name: rng.choice(of_layer[k - 1]) for k in range(1, layers) for name in of_layer[k]}
    source = [
        f"def {name}(x):\n    return {f'{calls[name]}(x)' if name in calls else 'x'} "
        f"{'-' if constants[name] < 0 else '+'} {abs(constants[name])}"
        for name in names
    ]
    rng.shuffle(source)
    asked = rng.choice(of_layer[CALL_DEPTHS[index % len(CALL_DEPTHS)] - 1])
    argument = rng.randint(-10, 10)
    value, name = argument, asked
    while name:
        value += constants[name]
        name = calls.get(name, "")
    question = f"Please give me the exact number of the return value of {asked}({argument})."
    return "\n\n".join(source), question, value


# units: noise lines, pairs, integers, terms or functions.
MAKERS: dict[str, Callable[[random.Random, int, int], Made]] = {
    "passkey": _noise("passkey"),
    "number_string": _noise("number_string"),
    "kv_retrieval": _pairs,
    "math_find": _ranked,
    "math_calc": _sums,
    "code_run": _functions,
}
# Tokens a unit at first guess, and the least units.
SIZES: dict[str, tuple[float, int]] = {
    "passkey": (25.0, 1),
    "number_string": (25.0, 1),
    "kv_retrieval": (90.0, 2),
    "math_find": (4.0, 9),
    "math_calc": (4.0, 4),
    "code_run": (30.0, 2 * CALL_DEPTHS[-1]),
}
