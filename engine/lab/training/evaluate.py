"""Dense scores of a model by task and length, and its loss on training and unseen text, as one JSON file.

    python -m routesparse.engine.lab.training.evaluate --model DIR --data DATA --report REPORT --out scores.json
    torchrun --nproc-per-node 4 -m routesparse.engine.lab.training.evaluate ...      samples shared out over GPUs

Needle prompts hide their needles in DATA/prose/test (documents that training never saw), with the evaluation half of
the key words and seeds of their own. Teacher-forced: every reference answer token is the model's first choice.
Greedy: RULER's partial credit of the generated text; a sample that is exact under teacher forcing generates exactly
the reference answer, so only the others are generated.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from routesparse.engine.lab.training.corpus import Document, read_folder
from routesparse.engine.lab.training.tasks import GENERATION_TOKENS, TASKS, Sample, Sizer, score_all
from routesparse.engine.lab.training.tokenizer import BOS_ID, EOS_ID, load_tokenizer

# (task, length, index) and what was measured on that sample.
Row = tuple[tuple[str, int, int], dict[str, float]]
SEED = 20_261
NLL_WINDOW = 4096


@dataclass(frozen=True)
class Maker:
    """Makes evaluation samples in worker processes."""

    tokenizer: Tokenizer
    haystacks: tuple[str, ...]
    seed: int

    def __call__(self, item: tuple[str, int, int]) -> tuple[tuple[str, int, int], Sample]:
        task, length, index = item
        sizer = Sizer(lambda text: len(self.tokenizer.encode(text).ids))
        haystack = self.haystacks[index % len(self.haystacks)]
        return item, sizer.fit(task, length, haystack=haystack, seed=self.seed, index=index)


_maker: Maker | None = None


def _make(item: tuple[str, int, int]) -> tuple[tuple[str, int, int], Sample]:
    assert _maker is not None
    return _maker(item)


def samples(maker: Maker, items: list[tuple[str, int, int]], workers: int) -> Iterator[tuple[tuple, Sample]]:
    """Samples of `items`, made ahead by `workers` forked processes (none: in this process)."""
    global _maker
    if workers < 2:
        yield from map(maker, items)
        return
    _maker = maker
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        yield from pool.imap(_make, items)


@torch.inference_mode()
def score_sample(model: Any, tokenizer: Tokenizer, sample: Sample, device: torch.device) -> dict[str, float]:
    """Teacher-forced exactness and token accuracy, and the greedy partial credit, of one sample."""
    prompt = [BOS_ID, *tokenizer.encode(sample.prompt + sample.answer_prefix).ids]
    answer = tokenizer.encode(sample.answer).ids
    ids = torch.tensor([prompt + answer], device=device)
    logits = model(ids, logits_to_keep=len(answer) + 1, use_cache=False).logits[0, :-1]
    hits = logits.argmax(-1) == ids[0, len(prompt) :]
    exact = bool(hits.all())
    if exact:
        prediction = sample.answer
    else:
        prefix = ids[:, : len(prompt)]
        out = model.generate(
            prefix, attention_mask=torch.ones_like(prefix), max_new_tokens=GENERATION_TOKENS[sample.task],
            do_sample=False, eos_token_id=EOS_ID, pad_token_id=EOS_ID,
        )  # fmt: skip
        prediction = tokenizer.decode(out[0, len(prompt) :].tolist())
    return {
        "exact": float(exact),
        "token_accuracy": hits.float().mean().item(),
        "greedy": score_all(prediction, sample.gold),
        "tokens": float(len(prompt)),
    }


@torch.inference_mode()
def nll(model: Any, tokenizer: Tokenizer, documents: list[Document], windows: int, seed: int, device) -> dict:
    """Mean loss in nats a token over random windows of NLL_WINDOW tokens, and bits a byte."""
    rng = random.Random(f"nll/{seed}")
    total = count = characters = 0.0
    for _ in range(windows):
        text = rng.choices(documents, [len(d.text) for d in documents])[0].text
        start = rng.randrange(max(len(text) - 6 * NLL_WINDOW, 1))
        encoding = tokenizer.encode(text[start : start + 6 * NLL_WINDOW])
        ids = torch.tensor([[BOS_ID, *encoding.ids[:NLL_WINDOW]]], device=device)
        logits = model(ids, use_cache=False).logits[0, :-1].float()
        total += F.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
        count += ids.shape[1] - 1
        characters += len(tokenizer.decode(ids[0, 1:].tolist()).encode())
    return {
        "nats_per_token": total / count,
        "bits_per_byte": total / 0.6931471805599453 / characters,
        "tokens": count,
    }


def losses(model: Any, tokenizer: Tokenizer, data: Path, train: list[Document], windows: int, device) -> dict:
    """Loss on training and on unseen documents by domain, with the ratio."""
    result = {}
    for domain in ("prose", "code", "dialog"):
        seen = [d for d in train if d.domain == domain]
        unseen = list(read_folder(data / domain / "test", domain))
        if not seen or not unseen:
            continue
        row = {
            "train": nll(model, tokenizer, seen, windows, SEED, device),
            "unseen": nll(model, tokenizer, unseen, windows, SEED, device),
        }
        row["ratio"] = row["unseen"]["nats_per_token"] / row["train"]["nats_per_token"]
        result[domain] = row
    return result


def read_rows(path: Path | None) -> list[Row]:
    """The samples that an earlier run has scored; none when there is no file."""
    if path is None or not path.exists():
        return []
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [((task, length, index), row) for (task, length, index), row in found]


def summarise(rows: list[Row]) -> dict[str, dict[str, dict[str, float]]]:
    """Means by task and length in percent, with n and the mean number of prompt tokens."""
    groups: dict[tuple[str, int], list[dict[str, float]]] = defaultdict(list)
    for (task, length, _), row in rows:
        groups[task, length].append(row)
    table: dict[str, dict[str, dict[str, float]]] = defaultdict(dict)
    for (task, length), found in sorted(groups.items()):
        means = {key: sum(row[key] for row in found) / len(found) for key in found[0]}
        table[task][str(length)] = {
            "greedy": round(100 * means["greedy"], 2),
            "exact": round(100 * means["exact"], 2),
            "token_accuracy": round(100 * means["token_accuracy"], 2),
            "n": len(found),
            "prompt_tokens": round(means["tokens"]),
        }
    return dict(table)


def load(folder: Path, device: torch.device) -> Any:
    """The model in bf16 on a GPU, in float32 on a CPU."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32
    )
    return model.to(device).eval()


def main(argv: list[str] | None = None) -> None:
    """Score a model densely on generated tasks and on text."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder with {prose,code,dialog}/test")
    parser.add_argument(
        "--report", type=Path, help="corpus report; with it the training text's loss is measured"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 8192, 16384, 32768, 65536])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--samples", type=int, default=32, help="samples a task and length")
    parser.add_argument(
        "--rows", type=Path, help="JSON lines, one a sample; those already there are not redone"
    )
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--windows", type=int, default=64, help="loss windows a domain and split, 0 for none")
    parser.add_argument("--workers", type=int, default=0, help="processes that make samples, per GPU")
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="stop scoring after this time, shortest index first"
    )
    args = parser.parse_args(argv)
    begin = time.monotonic()
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu")
    tokenizer = load_tokenizer(args.model)
    haystacks = tuple(d.text for d in read_folder(args.data / "prose" / "test", "prose"))
    # All lengths and tasks of an index before the next, so that a run cut short has a whole table with a smaller n.
    rows = read_rows(args.rows)
    done = {item for item, _ in rows}
    items = [(task, length, i) for i in range(args.samples) for length in args.lengths for task in args.tasks]
    items = [item for item in items if item not in done]
    made = samples(Maker(tokenizer, haystacks, args.seed), items[rank::size], args.workers)
    model: Any = None
    new: list[Row] = []
    for item, sample in made:
        # Loaded after the first sample: the sample makers are forked before CUDA starts.
        if model is None:
            model = load(args.model, device)
        new.append((item, score_sample(model, tokenizer, sample, device)))
        if time.monotonic() - begin > args.seconds:
            break
    if size > 1:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        gathered: list[Any] = [None] * size
        dist.all_gather_object(gathered, new)
        new = [row for part in gathered for row in part]
        dist.destroy_process_group()
    if rank:
        return
    rows += new
    if args.rows:
        args.rows.parent.mkdir(parents=True, exist_ok=True)
        args.rows.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result: dict[str, Any] = {"seed": args.seed, "scores": summarise(rows)}
    if model is None:
        model = load(args.model, device)
    if args.windows and args.report:
        from routesparse.engine.lab.training.train import kept_documents

        train = kept_documents(args.data, args.report)
        result["nll"] = losses(model, tokenizer, args.data, train, args.windows, device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    result |= {
        "device": name,
        "gpus": size,
        "torch": torch.__version__,
        "dtype": str(getattr(model, "dtype", None)),
        "attention": "dense sdpa",
    }
    result["seconds"] = round(time.monotonic() - begin, 1)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    for task, by_length in result["scores"].items():
        print(f"{task:16s}", *(f"{n}:{row['greedy']:.0f}/{row['exact']:.0f}" for n, row in by_length.items()))
    print(
        {domain: round(row["ratio"], 3) for domain, row in result.get("nll", {}).items()}, result["seconds"]
    )


if __name__ == "__main__":
    main()
