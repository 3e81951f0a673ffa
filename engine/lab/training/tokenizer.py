"""The bundled model's tokenizer: byte-level BPE in which everything that is copied character by character stays so.

Digits, the letters of acronyms and hex letters next to digits are tokens of their own, so that a number, a
variable name of five capitals and a uuid have the same length in tokens whatever their value.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

BOS, EOS = "<s>", "</s>"
BOS_ID, EOS_ID = 0, 1
VOCABULARY = 4096
_SINGLES = r"\p{N}|[A-Z](?=[A-Z])|(?<=[A-Z])[A-Z](?![a-z])|[a-f](?=[0-9])|(?<=[0-9])[a-f](?![a-z]{2})"


def train_tokenizer(texts: Iterable[str], vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """A byte-level BPE of `vocabulary` entries, id 0 begins and id 1 ends a document."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SINGLES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS, model_max_length=131072
    )


def load_tokenizer(folder: Path) -> Tokenizer:
    """The plain fast tokenizer of a saved folder, for the training processes."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))
