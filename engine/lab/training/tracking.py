"""Variable tracking (vt) and frequent words (fwe), on RULER's templates.

vt: chains of assignments hidden in order among noise lines, a worked example in front. fwe: coded words whose
counts fall as rank^-2; rank 1 is dots, the answer is ranks 2 to 4.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from routesparse.engine.lab.training.niah import NOISE
from routesparse.engine.lab.training.samples import Built, Training, Turn


def _vt_names(rng: random.Random, count: int, letters: int) -> list[str]:
    names: dict[str, None] = {}
    while len(names) < count:
        names["".join(rng.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=letters))] = None
    return list(names)


def _vt_block(rng: random.Random, lines: int, chains: int, hops: int, letters: int):
    """Noise lines with variable chains in them: pieces, marks, names by chain and the chains' numbers."""
    names = _vt_names(rng, chains * (hops + 1), letters)
    numbers = [str(n) for n in rng.sample(range(10_000, 99_999), chains)]
    by_chain = [names[c * (hops + 1) : (c + 1) * (hops + 1)] for c in range(chains)]
    pieces = [NOISE] * lines
    tagged: list[tuple[int, int, int, str]] = []
    for c, chain in enumerate(by_chain):
        places = sorted(rng.randint(0, lines) for _ in chain)
        for hop, (place, name) in enumerate(zip(places, chain, strict=True)):
            source = numbers[c] if hop == 0 else f"VAR {chain[hop - 1]} "
            tagged.append((place, hop, c, f"VAR {name} = {source}"))
    tagged.sort(key=lambda item: item[:3])
    marked: dict[int, int] = {}
    for offset, (place, _hop, c, text) in enumerate(tagged):
        pieces.insert(place + offset, text)
        marked[place + offset] = c
    return pieces, marked, by_chain, numbers


def _vt_turn(number: str, names: Sequence[str], lead: str = "\n") -> Turn:
    question = f"{lead}Question: Find all variables that are assigned the value {number} in the text above."
    prefix = (
        f" Answer: According to the chain(s) of variable assignment in the text above, {len(names)} variables "
        f"are assgined the value {number}, they are: "
    )
    return Turn(question, prefix, tuple(names), " ".join(names))


_VT_INTRO = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"


def make_vt(rng: random.Random, units: int, t: Training) -> Built:
    """RULER's variable tracking: a worked example, then chains of assignments among lines of noise."""
    hops = t.hops or 4
    shown, _, example_names, example_numbers = _vt_block(rng, 8, 1, hops, 3)
    example_turn = _vt_turn(example_numbers[0], example_names[0])
    example = f"{_VT_INTRO}{chr(10).join(shown)}{example_turn.question}{example_turn.answer_prefix}"
    intro = f"{example}{example_turn.answer}\n\n{_VT_INTRO}"
    chains = max(t.chains or 1, t.questions)
    pieces, marked, names, numbers = _vt_block(rng, units, chains, hops, 5)
    spans: list[tuple[int, int, int]] = []
    position = len(intro)
    for index, piece in enumerate(pieces):
        if index in marked:
            spans.append((marked[index], position, position + len(piece)))
        position += len(piece) + 1
    order = rng.sample(range(chains), t.questions)
    turns = [_vt_turn(numbers[c], names[c]) for c in order]
    asked = [(start, end) for c, start, end in spans if c == order[0]]
    return intro + "\n".join(pieces), turns, asked, {"chains": chains, "hops": hops}


def make_fwe(rng: random.Random, units: int) -> Built:
    """Coded words with frequencies falling as rank^-2; rank 1 is dots, gold are ranks 2 to 4."""
    size = max(units // 20, 8)
    words: dict[str, None] = {}
    while len(words) < size:
        words["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=6))] = None
    vocabulary = ["...", *list(words)[1:]]
    zeta_2 = 1.6449340668482264
    text: list[str] = []
    for rank, word in enumerate(vocabulary, start=1):
        text += [word] * int(units / (rank * rank * zeta_2))
    rng.shuffle(text)
    gold = tuple(vocabulary[1:4])
    intro = (
        "Read the following coded text and track the frequency of each coded word. "
        "Find the three most frequently appeared coded words. "
    )
    question = (
        "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. "
        "What are the three most frequently appeared words in the above coded text?"
    )
    prefix = " Answer: According to the coded text above, the three most frequently appeared words are:"
    turn = Turn(question, prefix, gold, " " + ", ".join(gold) + ".")
    return intro + " ".join(text), [turn], [], {"vocabulary": size}
