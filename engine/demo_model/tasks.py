"""RULER-like tasks: prompts with hidden needles, their gold answers, and the score.

After RULER (Hsieh et al. 2024, arXiv:2404.06654): needles in a haystack (single 1 to 3, multikey 1 to 3,
multivalue, multiquery), variable tracking (vt) and frequent words (fwe), on the same templates. Pure Python; the
haystack text is passed in. Every sample has its own generator keyed on (seed, task, length, index), so a sample
depends neither on its neighbours nor on the tokenizer's speed of search.

    sample = fit_sample("niah_multikey_1", 4096, count_tokens=count, haystack=text, seed=0, index=3)
    prediction = model(sample.prompt + sample.answer_prefix)
    score = score_all(prediction, sample.gold)
"""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from routesparse.engine.demo_model.words import WordSet, key_words

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_CONTROL = re.compile(r"[\x00-\x1f]")


@dataclass(frozen=True)
class Needles:
    """What a needle task hides and asks: the haystack kind, key and value kinds, and how many of each."""

    haystack: str
    key: str
    value: str
    keys: int = 1
    values: int = 1
    queries: int = 1


NIAH: dict[str, Needles] = {
    "niah_single_1": Needles("noise", "words", "numbers"),
    "niah_single_2": Needles("essay", "words", "numbers"),
    "niah_single_3": Needles("essay", "words", "uuids"),
    "niah_multikey_1": Needles("essay", "words", "numbers", keys=4),
    "niah_multikey_2": Needles("needle", "words", "numbers"),
    "niah_multikey_3": Needles("needle", "uuids", "uuids"),
    "niah_multivalue": Needles("essay", "words", "numbers", values=4),
    "niah_multiquery": Needles("essay", "words", "numbers", keys=4, queries=4),
}
TASKS: tuple[str, ...] = (*NIAH, "vt", "fwe")
# Room for the answer that RULER reserves inside the target length, in tokens.
GENERATION_TOKENS: dict[str, int] = {**dict.fromkeys(NIAH, 128), "vt": 30, "fwe": 50}


@dataclass(frozen=True)
class Turn:
    """A question with its unfinished answer, the strings that must appear, and a full reference answer."""

    question: str
    answer_prefix: str
    gold: tuple[str, ...]
    answer: str


@dataclass(frozen=True)
class Sample:
    """One prompt. The model reads `prompt + answer_prefix`; `answer` is a reference completion, `gold` is scored.

    needle_spans: (start, end) characters of the asked needles in `prompt`, in order of appearance.
    more: further questions on the same context (training only), asked after the first answer.
    metadata: seed, length (target tokens, 0 when not sized), index, units, and the task's own counts.
    """

    task: str
    context: str
    first: Turn
    needle_spans: tuple[tuple[int, int], ...]
    more: tuple[Turn, ...] = ()
    metadata: dict[str, int | str] = field(default_factory=dict)

    @property
    def prompt(self) -> str:
        return self.context + self.first.question

    @property
    def answer_prefix(self) -> str:
        return self.first.answer_prefix

    @property
    def gold(self) -> tuple[str, ...]:
        return self.first.gold

    @property
    def answer(self) -> str:
        return self.first.answer


@dataclass(frozen=True)
class Training:
    """Options that only training uses: more needles, more questions a context, made-up keys, other counts.

    questions: how many questions one context is asked; needles: hidden keys (0 keeps the task's own);
    values: values a key (0 keeps); queries: keys a question (0 keeps); chains, hops: of vt (0 keeps).
    """

    questions: int = 1
    needles: int = 0
    values: int = 0
    queries: int = 0
    chains: int = 0
    hops: int = 0
    invented_share: float = 0.0


def sample_rng(seed: int, task: str, length: int, index: int) -> random.Random:
    """The sample's own generator; string seeds give the same stream on every platform."""
    return random.Random(f"routesparse/{seed}/{task}/{length}/{index}")


def score_all(prediction: str, gold: Sequence[str]) -> float:
    """RULER's string_match_all with partial credit: the share of gold strings found in the prediction, 0 to 1.

    Both sides are compared case-insensitively as substrings; control characters of the prediction become
    newlines and the ends are stripped. Order, duplicates and extra text do not matter. A task's score is the
    mean over its samples times 100. Raises ValueError when `gold` is empty.
    """
    if not gold:
        raise ValueError("gold is empty; a sample needs at least one string to find")
    text = _CONTROL.sub("\n", prediction.strip()).strip().lower()
    return sum(item.lower() in text for item in gold) / len(gold)


def _value(rng: random.Random, kind: str, part: WordSet, invented_share: float) -> str:
    if kind == "numbers":
        return str(rng.randint(1_000_000, 9_999_999))
    if kind == "uuids":
        return str(uuid.UUID(int=rng.getrandbits(128), version=4))
    if kind == "words":
        return key_words(rng, part, invented_share)
    raise ValueError(f"unknown kind {kind!r}; use numbers, uuids or words")


def _distinct(rng: random.Random, kind: str, count: int, part: WordSet, invented_share: float) -> list[str]:
    found: dict[str, None] = {}
    tries = 0
    while len(found) < count:
        word = _value(rng, kind, part, invented_share)
        tries += 1
        # Far beyond the number of distinct pairs, a third word keeps keys unique.
        found[word if tries < 20 * count else f"{word}-{len(found)}"] = None
    return list(found)


def needle_sentence(kind: str, key: str, value: str) -> str:
    """RULER's needle: one of the special magic {kind} for {key} is {value}."""
    return f"One of the special magic {kind} for {key} is: {value}."


def _niah_texts(kind: str, keys: Sequence[str], values: Sequence[str]) -> tuple[str, Turn]:
    """The instruction and the question for `keys`, singular when one key has one value."""
    many = len(keys) > 1 or len(values) > 1
    query = keys[0] if len(keys) == 1 else ", ".join(keys[:-1]) + ", and " + keys[-1]
    noun, verb = (kind, "are") if many else (kind[:-1], "is")
    opening = f"Some special magic {kind} are" if many else f"A special magic {noun} is"
    intro = (
        f"{opening} hidden within the following text. Make sure to memorize it. "
        f"I will quiz you about the {noun} afterwards.\n"
    )
    wording = "What are all the" if many else "What is the"
    question = f"\n{wording} special magic {noun} for {query} mentioned in the provided text?"
    prefix = f" The special magic {noun} for {query} mentioned in the provided text {verb}"
    return intro, Turn(question, prefix, tuple(values), " " + ", ".join(values) + ".")


def _join(intro: str, pieces: list[str], separator: str, marked: dict[int, int]) -> tuple[str, dict[int, tuple]]:
    """Join pieces behind the intro; return the text and the character span of every marked piece."""
    spans: dict[int, tuple[int, int]] = {}
    position = len(intro)
    for index, piece in enumerate(pieces):
        if index in marked:
            spans[marked[index]] = (position, position + len(piece))
        position += len(piece) + len(separator)
    return intro + separator.join(pieces), spans


def _place(rng: random.Random, hay: list[str], needles: list[str], spread: bool) -> tuple[list[str], dict[int, int]]:
    """Insert needles in random order of place; return pieces and {piece index: needle index}.

    `spread`: depths without replacement from 40 even percentages (RULER's essays); otherwise anywhere.
    """
    count = len(needles)
    if spread and count <= 40:
        depths = rng.sample(range(40), count)
        places = [round(len(hay) * depth / 39) for depth in depths]
    else:
        places = [rng.randint(0, len(hay)) for _ in needles]
    order = sorted(range(count), key=lambda i: (places[i], i))
    pieces: list[str] = []
    marked: dict[int, int] = {}
    done = 0
    for needle in order:
        pieces += hay[done : places[needle]]
        done = places[needle]
        marked[len(pieces)] = needle
        pieces.append(needles[needle])
    return pieces + hay[done:], marked


def _essay(rng: random.Random, haystack: str, characters: int) -> list[str]:
    """Sentences of a random stretch of the haystack of about `characters`, white space collapsed, wrapping."""
    if not haystack.strip():
        raise ValueError("the haystack is empty; pass some text, for instance a public-domain book")
    start = rng.randrange(len(haystack))
    start = haystack.find(" ", start) + 1
    text = haystack[start : start + characters]
    while len(text) < characters:
        text += " " + haystack[: characters - len(text)]
    return _SENTENCE_END.split(" ".join(text.split()))


def _make_niah(task: str, rng: random.Random, units: int, haystack: str, part: WordSet, t: Training):
    spec = NIAH[task]
    per_key = t.values or spec.values
    queries = t.queries or spec.queries
    asked = t.questions * queries
    keys_hidden = max(t.needles or spec.keys, asked)
    if spec.haystack == "needle":
        keys_hidden = max(units, asked)
    keys = _distinct(rng, spec.key, keys_hidden, part, t.invented_share)
    values = [[_value(rng, spec.value, part, 0) for _ in range(per_key)] for _ in keys]
    flat = [(k, v) for k in range(len(keys)) for v in range(per_key)]
    needles = [needle_sentence(spec.value, keys[k], values[k][v]) for k, v in flat]
    if spec.haystack == "needle":
        order = rng.sample(range(len(needles)), len(needles))
        pieces, separator = [needles[i] for i in order], "\n"
        marked = {place: needle for place, needle in enumerate(order)}
    elif spec.haystack == "noise":
        pieces, marked = _place(rng, [NOISE] * units, needles, spread=False)
        separator = "\n"
    else:
        pieces, marked = _place(rng, _essay(rng, haystack, units), needles, spread=True)
        separator = " "
    ranks = {needle: place for place, needle in marked.items()}
    chosen = rng.sample(range(len(keys)), asked)
    turns = []
    for start in range(0, asked, queries):
        group = chosen[start : start + queries]
        # A key's values are named in order of appearance; several keys in the order of the question.
        gold = [
            values[k][v] for k in group for v in sorted(range(per_key), key=lambda v, k=k: ranks[k * per_key + v])
        ]
        turns.append(_niah_texts(spec.value, [keys[k] for k in group], gold))
    context, spans = _join(turns[0][0], pieces, separator, marked)
    first = set(chosen[:queries])
    asked_spans = sorted(spans[i] for i, (k, _) in enumerate(flat) if k in first)
    return context, [turn for _, turn in turns], asked_spans, {"needles": len(needles), "keys": len(keys)}


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


def _make_vt(rng: random.Random, units: int, t: Training):
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


def _make_fwe(rng: random.Random, units: int):
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


def make_sample(
    task: str,
    units: int,
    *,
    haystack: str = "",
    seed: int,
    length: int = 0,
    index: int = 0,
    words: WordSet = "eval",
    training: Training | None = None,
) -> Sample:
    """One sample with a haystack of `units`.

    units: characters (essay tasks), lines (noise, vt), needles (needle haystacks) or coded words (fwe).
    haystack: the text that essay tasks hide needles in; the others ignore it.
    """
    t = training or Training()
    rng = sample_rng(seed, task, length, index)
    if task in NIAH:
        context, turns, spans, counts = _make_niah(task, rng, units, haystack, words, t)
    elif task == "vt":
        context, turns, spans, counts = _make_vt(rng, units, t)
    elif task == "fwe":
        context, turns, spans, counts = _make_fwe(rng, units)
    else:
        raise ValueError(f"unknown task {task!r}; use one of {', '.join(TASKS)}")
    metadata = {"seed": seed, "length": length, "index": index, "units": units, "words": words, **counts}
    return Sample(task, context, turns[0], tuple(spans), tuple(turns[1:]), metadata)


# A first guess of tokens a unit, refined by the first measured sample of each task.
_FIRST_GUESS = {"noise": 25.0, "essay": 0.27, "needle": 30.0, "vt": 25.0, "fwe": 4.0}
_LEAST_UNITS = {"essay": 200, "fwe": 60}


class Sizer:
    """Finds the haystack size that fills a target length, and remembers tokens a unit by task.

    count_tokens: text -> number of tokens, without special tokens; `special_tokens` are added to it.
    """

    def __init__(self, count_tokens: Callable[[str], int], special_tokens: int = 1, least_fill: float = 0.95):
        self.count_tokens = count_tokens
        self.special_tokens = special_tokens
        self.least_fill = least_fill
        self._rate: dict[str, float] = {}

    def tokens(self, sample: Sample) -> int:
        """Tokens of prompt, answer prefix and every further question with its answer."""
        text = sample.prompt + sample.answer_prefix
        if sample.more:
            text += sample.answer + "".join(t.question + t.answer_prefix + t.answer for t in sample.more)
        return self.count_tokens(text) + self.special_tokens

    def fit(
        self,
        task: str,
        length: int,
        *,
        haystack: str = "",
        seed: int,
        index: int = 0,
        words: WordSet = "eval",
        training: Training | None = None,
        reserve: int | None = None,
        tries: int = 5,
    ) -> Sample:
        """The fullest sample found whose tokens plus the room for the answer stay within `length`.

        reserve: tokens kept free for the answer, RULER's number for the task when None.
        Raises ValueError when even the smallest haystack does not fit.
        """
        kind = NIAH[task].haystack if task in NIAH else task
        room = length - (GENERATION_TOKENS.get(task, 0) if reserve is None else reserve)
        least = _LEAST_UNITS.get(kind, 1)
        # tokens = fixed + rate * units: the rate is remembered, the fixed part is measured on the first try.
        rate = self._rate.get(kind, _FIRST_GUESS[kind])
        units = max(int((room - 60) * 0.98 / rate), least)
        best: Sample | None = None
        last: tuple[int, int] | None = None
        for _ in range(tries):
            sample = make_sample(
                task, units, haystack=haystack, seed=seed, length=length, index=index, words=words, training=training
            )
            used = self.tokens(sample)
            if used <= room and (best is None or units > int(best.metadata["units"])):
                best = sample
            if (used <= room and used >= self.least_fill * room) or (used > room and units <= least):
                break
            if last is not None and abs(units - last[0]) > 0.05 * units:
                rate = self._rate[kind] = max((used - last[1]) / (units - last[0]), 0.3 * rate)
            last = (units, used)
            # Aim a little under the target, so that the next try fits.
            units = max(int(units + (room * 0.985 - used) / rate), least)
        if best is None:
            raise ValueError(f"{task} does not fit {length} tokens; the smallest haystack takes more, raise length")
        return best


def fit_sample(
    task: str,
    length: int,
    *,
    count_tokens: Callable[[str], int],
    haystack: str = "",
    seed: int,
    index: int = 0,
    words: WordSet = "eval",
    training: Training | None = None,
) -> Sample:
    """`make_sample` sized so that prompt, answer prefix and the answer's room stay within `length` tokens."""
    sizer = Sizer(count_tokens)
    return sizer.fit(
        task, length, haystack=haystack, seed=seed, index=index, words=words, training=training
    )
