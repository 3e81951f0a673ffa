"""Tokenizers of several kinds, with parts that no tokenizer should have."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

from tests.fuzz.fuzzed.target import edited, scrambled

Part = dict[str, Any]


def _split(pattern: str) -> Part:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _replace(old: str, new: str) -> Part:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def _several(part: Part, times: int, name: str = "normalizers") -> Part:
    return {"type": "Sequence", name: [part] * times}


def _added(number: int, content: str) -> list[Part]:
    settings = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return [{"id": number, "content": content, "special": True, **settings}]


def _template(number: int) -> Part:
    single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    special = {"<s>": {"id": "<s>", "ids": [number], "tokens": ["<s>"]}}
    return {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": special}


_LETTERS = {chr(code): code - 32 for code in range(32, 127)}
_BYTES = {f"<0x{byte:02X}>": 100 + byte for byte in range(256)}
_BPE = {
    "type": "BPE",
    "vocab": {**_LETTERS, "th": 95, "the": 96},
    "merges": ["t h", "th e"],
    "unk_token": "?",
}
_FALLBACK = {"type": "BPE", "vocab": {**_BYTES, "<unk>": 0}, "merges": [], "byte_fallback": True}
_WORD = {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"}
_PIECE = {
    **{"type": "WordPiece", "vocab": {**_LETTERS, "##a": 95, "[UNK]": 96}, "unk_token": "[UNK]"},
    **{"continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
}
_UNIGRAM = {
    "type": "Unigram",
    "vocab": [[one, -float(place)] for one, place in _LETTERS.items()],
    "unk_id": 0,
}
_MODELS: list[Part] = [_BPE, {**_FALLBACK, "unk_token": "<unk>"}, _WORD, _PIECE, _UNIGRAM]
TOKENIZER: Part = {
    **{"version": "1.0", "truncation": None, "padding": None, "added_tokens": _added(399, "<s>")},
    **dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder")),
    "model": _BPE,
}
# Each takes as much of memory or a processor as it gets, so that its process ends: few of the cases.
ENDLESS: list[Part] = [
    *({"pre_tokenizer": _split(pattern)} for pattern in ("(a+)+$", "(a|a)*b", "(?:a?){40}a{40}", "(.*)*x")),
    {"normalizer": _several(_replace("a", "aa"), 28)},
    {"normalizer": _several(_replace("a", "a" * 1_000), 3)},
    *({"normalizer": {"type": "Prepend", "prepend": "b" * 10**digits}} for digits in (5, 6, 7)),
]
SHARE_ENDLESS = 0.0005
_OFFSETS = {"add_prefix_space": True, "trim_offsets": True, "use_regex": True}
PARTS: dict[str, list[Any]] = {
    "truncation": [
        {"direction": side, "max_length": most, "strategy": "LongestFirst", "stride": stride}
        for side in ("Left", "Right")
        for most, stride in ((0, 0), (1, 0), (5, 5), (5, 2), (512, 0), (2**31, 0), (2**63, 1), (3, 2**63))
    ],
    "padding": [
        {
            **{"strategy": strategy, "direction": "Right", "pad_to_multiple_of": multiple},
            **{"pad_id": pad, "pad_type_id": 0, "pad_token": "a"},
        }
        for strategy in ("BatchLongest", *({"Fixed": size} for size in (0, 7, 10**6, 2 * 10**9, 2**63)))
        for multiple, pad in ((None, 0), (8, 0), (0, 0), (2**31, 2**32 - 1))
    ],
    "normalizer": [
        *({"type": kind} for kind in ("NFKC", "Lowercase", "StripAccents", "Nmt")),
        *(_replace(*words) for words in (("a", ""), ("", "b"), ("a", "b" * 10), (" ", "▁"))),
        *({"type": "Prepend", "prepend": text} for text in ("▁", "")),
        {"type": "Strip", "strip_left": True, "strip_right": True},
        *(
            {"type": "Precompiled", "precompiled_charsmap": table}
            for table in ("", "AAAA////", "BAAAAP////8A", "A" * 999, "!")
        ),
        _several(_replace("a", "aa"), 4),
        {"type": "Replace", "pattern": {"Regex": "a*"}, "content": "b"},
        {
            **dict.fromkeys(("clean_text", "handle_chinese_chars", "lowercase"), True),
            **{"type": "BertNormalizer", "strip_accents": None},
        },
    ],
    "pre_tokenizer": [
        *(_split(pattern) for pattern in (r"\s", "", "a", "(?=a)", "(", r"\1", "[a-z]+", "(?<!a)b")),
        *({"type": kind} for kind in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer", "UnicodeScripts")),
        {"type": "ByteLevel", **_OFFSETS},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        *({"type": "FixedLength", "length": length} for length in (0, 1, 2**63)),
        {"type": "Digits", "individual_digits": True},
        _several({"type": "Whitespace"}, 50, "pretokenizers"),
    ],
    "decoder": [
        *({"type": kind} for kind in ("ByteFallback", "Fuse")),
        {"type": "ByteLevel", **_OFFSETS},
        *(_several(_replace("a", "a" * 1_000), times, "decoders") for times in (1, 3)),
    ],
    "post_processor": [_template(399), _template(2**32 - 1)],
    "added_tokens": [
        *(_added(number, "<s>") for number in (0, 399, 400, 2**32 - 1)),
        *(_added(number, content) for number, content in ((0, ""), (5, "a"), (10**9, "b"))),
    ],
    "model": [
        *(*_MODELS, *_MODELS),
        *({**_UNIGRAM, "unk_id": number} for number in (None, 10**6, 2**63)),
        *({**_UNIGRAM, "vocab": [["q", score], ["a", 1e308]]} for score in (-1.0, float("nan"))),
        {**_UNIGRAM, "vocab": [["q", -1.0]], "unk_id": None, "byte_fallback": True},
        *({**_BPE, "vocab": {**_LETTERS, "zz": number}, "merges": []} for number in (399, 400, 2**32 - 1)),
        *({**_BPE, "dropout": dropout} for dropout in (0.5, 1.5, float("nan"))),
        {**_BPE, "merges": ["x yz"]},
        {**_FALLBACK, "byte_fallback": False},
        {**_WORD, "unk_token": "not there"},
        *({**_PIECE, "max_input_chars_per_word": most} for most in (0, 2**63)),
    ],
}
TEXTS = (
    *("a" * 30 + "!", "a b the cat", "täglich 1 漢\n", "  a\t<s> b", "<s>the <s>"),
    *("ａ\u0301🙂 a" * 40, "the a " * 400),
)


def tokenizer_like(seed: int) -> bytes:
    """A tokenizer.json with up to two of PARTS, edited in them or in its bytes."""
    random = Random(seed)
    found = {**copy.deepcopy(TOKENIZER), "model": copy.deepcopy(random.choice(_MODELS))}
    for _ in range(random.choice((0, 1, 1, 2))):
        name = random.choice(sorted(PARTS))
        part = copy.deepcopy(random.choice(PARTS[name]))
        found[name] = edited(part, seed) if random.random() < 0.3 else part
    if random.random() < SHARE_ENDLESS:
        found |= copy.deepcopy(random.choice(ENDLESS))
    content = json.dumps(found).encode()
    return content if random.random() < 0.9 else scrambled(content, seed)
