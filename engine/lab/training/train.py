"""Train the bundled model: Muon and AdamW, context lengths in phases, a schedule driven by elapsed time.

    python -m routesparse.engine.lab.training.train --data DATA --tokenizer DIR --out OUT --minutes 17
    torchrun --nproc-per-node 4 -m routesparse.engine.lab.training.train ...       several GPUs, one process each
    python -m routesparse.engine.lab.training.train ... --tasks stories --weights DIR --adapter 32

The wall time given by --minutes is the whole schedule, so the learning rate always reaches its end. A checkpoint
(weights, optimisers, progress) is written every --save-minutes; the same command with --resume goes on from it, and
--weights DIR starts from exported weights alone with a short warm-up. With --adapter RANK these stay as they are and
a low-rank adapter is trained (adapter.py): OUT/adapter holds it, OUT/model the weights that it was merged into.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from routesparse.engine.lab.training.adapter import adapt, export_adapter, load_factors, merge
from routesparse.engine.lab.training.batches import (
    ANSWER,
    CONTEXT,
    RECIPES,
    TEXT,
    BatchSource,
    Corpus,
    Phase,
    length_at,
)
from routesparse.engine.lab.training.corpus import Document, read_training
from routesparse.engine.lab.training.model import Llama, Shape, export, load_weights
from routesparse.engine.lab.training.muon import Muon
from routesparse.engine.lab.training.tokenizer import load_tokenizer

# Share of the loss of each class of token, whatever their number in the batch.
CLASS_WEIGHTS = {TEXT: 1.0, CONTEXT: 0.1, ANSWER: 1.0}
WARM_UP_STEPS = 100
CONSTANT_UNTIL = 0.40
FINAL_RATE = 0.02
LOG_EVERY = 20


def learning_rate_scale(step: int, progress: float) -> float:
    """Linear warm-up over steps, constant to CONSTANT_UNTIL of the time, then linear to FINAL_RATE."""
    warm = min((step + 1) / WARM_UP_STEPS, 1.0)
    if progress <= CONSTANT_UNTIL:
        return warm
    rest = min((progress - CONSTANT_UNTIL) / (1 - CONSTANT_UNTIL), 1.0)
    return warm * (1 - rest * (1 - FINAL_RATE))


class Group:
    """The processes of a run, one a GPU; a run of one process needs no back end."""

    def __init__(self) -> None:
        self.rank, self.size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        self.device = torch.device(
            f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
        )
        self._control = None

    def start(self) -> None:
        """Join the other processes. Called after the worker processes are forked."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if self.size > 1:
            dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo")
            self._control = dist.new_group(backend="gloo")

    def progress_of_first(self, progress: float) -> float:
        """Rank 0's progress, so that all processes take the same phase and stop together."""
        if self.size == 1:
            return progress
        shared = torch.tensor([progress], dtype=torch.float64)
        dist.broadcast(shared, 0, group=self._control)
        return float(shared)

    def sum(self, tensor: Tensor) -> Tensor:
        """In place, over all processes."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """In place, over all processes, as one flat tensor."""
        if self.size > 1:
            grads = [p.grad for p in parameters if p.grad is not None]
            flat = torch.cat([g.flatten() for g in grads])
            dist.all_reduce(flat)
            parts = flat.split([g.numel() for g in grads])
            torch._foreach_copy_(grads, [part.view_as(g) for part, g in zip(parts, grads, strict=True)])

    def copy_parameters(self, parameters: Sequence[Tensor]) -> None:
        """Rank 0's parameters to every process."""
        if self.size > 1:
            for parameter in parameters:
                dist.broadcast(parameter.detach(), 0)

    def finish(self) -> None:
        """Leave the group."""
        if self.size > 1:
            dist.destroy_process_group()


def attention_backend(device: torch.device):
    """cuDNN's attention first on a GPU: about twice the rate of the default on Hopper."""
    if device.type != "cuda":
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True)


def optimisers(model: Llama, args: argparse.Namespace, fused: bool) -> list[torch.optim.Optimizer]:
    """Muon for the matrices and AdamW for the rest, or one of both for the factors of an adapter."""
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    by_muon = [p for name, p in trained if p.ndim == 2 and "embed" not in name]
    by_adam = [p for name, p in trained if p.ndim < 2 or "embed" in name]
    adam_rate = args.adam_rate
    if args.adapter and args.adapter_optimiser == "adamw":
        by_muon, by_adam, adam_rate = [], by_muon, args.adapter_rate
    made: list[torch.optim.Optimizer] = []
    if by_muon:
        made.append(Muon(by_muon, lr=args.muon_rate))
    if by_adam:
        made.append(
            torch.optim.AdamW(by_adam, lr=adam_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=fused)
        )
    return made


class Trainer:
    """Model, optimisers and the state that a checkpoint holds; adapted: the folder of the weights that stay frozen."""

    def __init__(
        self,
        model: Llama,
        group: Group,
        optimisers: list[torch.optim.Optimizer],
        adapted: Path | None = None,
    ):
        self.model, self.group, self.optimisers, self.adapted = model, group, optimisers, adapted
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.rates = [optimiser.param_groups[0]["lr"] for optimiser in optimisers]
        self.step, self.progress, self.tokens = 0, 0.0, 0
        self.warm_step = 0

    def train_step(self, ids, classes) -> Tensor:
        """One update; returns [loss sum, count] of each class and the answers' hits, float64 [7]."""
        device = self.group.device
        ids_t = torch.from_numpy(ids.astype("int64"))
        kinds = torch.from_numpy(classes[:, 1:].copy())
        if device.type == "cuda":
            ids_t, kinds = ids_t.pin_memory(), kinds.pin_memory()
        ids_t, kinds = ids_t.to(device, non_blocking=True), kinds.to(device, non_blocking=True)
        counts = torch.stack([(kinds == kind).sum() for kind in CLASS_WEIGHTS]).double()
        total = self.group.sum(counts.clone()).clamp(min=1)
        weights = torch.zeros(kinds.shape, device=device)
        for place, (kind, weight) in enumerate(CLASS_WEIGHTS.items()):
            weights += (kinds == kind) * (weight / total[place]).float()
        loss, each, hit = self.model.loss(ids_t[:, :-1], ids_t[:, 1:], weights)
        loss.backward()
        self.group.sum_gradients(self.parameters)
        scale = learning_rate_scale(self.warm_step, self.progress)
        for optimiser, rate in zip(self.optimisers, self.rates, strict=True):
            for group in optimiser.param_groups:
                group["lr"] = rate * scale
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.step += 1
        self.warm_step += 1
        self.tokens += ids_t[:, 1:].numel() * self.group.size
        flat = kinds.flatten()
        sums = torch.stack([(each * (flat == kind)).sum() for kind in CLASS_WEIGHTS]).double()
        hits = (hit & (flat == ANSWER)).sum().double()
        return torch.cat([sums, counts, hits[None]])

    def save(self, folder: Path) -> None:
        """Checkpoint and exported weights, each replaced in one move."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            "model": self.model.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            "step": self.step,
            "progress": self.progress,
            "tokens": self.tokens,
        }
        partial = folder / "checkpoint.partial"
        torch.save(state, partial)
        partial.replace(folder / "checkpoint.pt")
        if self.adapted is None:
            export(self.model, folder / "model")
        else:
            export_adapter(self.model, self.adapted, folder / "adapter")
            merge(self.adapted, folder / "adapter", folder / "model")

    def load(self, path: Path) -> None:
        """Go on from a checkpoint: weights, optimisers, place in the schedule, and a warm-up that is over."""
        state = torch.load(path, map_location=self.group.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        self.step, self.progress, self.tokens = state["step"], state["progress"], state["tokens"]
        self.warm_step = WARM_UP_STEPS


def run(trainer: Trainer, source: BatchSource, args: argparse.Namespace, phases: Sequence[Phase]) -> None:
    """The loop: until the time (or --steps) is used up, log every LOG_EVERY steps, save now and then."""
    group, first = trainer.group, trainer.group.rank == 0
    begin, begun_at = time.monotonic(), trainer.progress
    last_save = last_log = begin
    waited, tokens_logged = 0.0, trainer.tokens
    sums: dict[int, Tensor] = {}
    while True:
        now = time.monotonic()
        elapsed = (now - begin) / (args.minutes * 60)
        trainer.progress = group.progress_of_first(begun_at + (1 - begun_at) * elapsed)
        if trainer.progress >= args.stop or (args.steps and trainer.step >= args.steps):
            break
        source.progress.value = trainer.progress
        length = length_at(trainer.step, trainer.progress, phases)
        result = trainer.train_step(*source.get(length))
        sums[length] = sums[length] + result if length in sums else result
        if trainer.step % LOG_EVERY == 0:
            for seen, total in sorted(sums.items()):
                text, context, answer, n_text, n_context, n_answer, hits = group.sum(total.clone()).tolist()
                row = {
                    "step": trainer.step,
                    "elapsed_s": round(time.monotonic() - begin, 1),
                    "progress": round(trainer.progress, 4),
                    "length": seen,
                    "rate": round(learning_rate_scale(trainer.warm_step, trainer.progress), 4),
                    "loss_text": round(text / max(n_text, 1), 4),
                    "loss_context": round(context / max(n_context, 1), 4),
                    "loss_answer": round(answer / max(n_answer, 1), 4),
                    "answer_accuracy": round(hits / max(n_answer, 1), 4),
                    "tokens": trainer.tokens,
                    "tokens_per_s": int((trainer.tokens - tokens_logged) / (time.monotonic() - last_log)),
                    "waited_s": round(source.waited_s - waited, 2),
                }
                if first:
                    with (args.out / "log.jsonl").open("a") as log:
                        print(json.dumps(row), file=log)
            sums, tokens_logged, last_log, waited = {}, trainer.tokens, time.monotonic(), source.waited_s
        if first and now - last_save > args.save_minutes * 60:
            trainer.save(args.out)
            last_save = now
    if first:
        trainer.save(args.out)
        summary = {
            "steps": trainer.step,
            "tokens": trainer.tokens,
            "train_s": round(time.monotonic() - begin, 1),
            "gpus": group.size,
            "device": torch.cuda.get_device_name() if group.device.type == "cuda" else "CPU",
            "torch": torch.__version__,
            "shape": asdict(trainer.model.shape),
            "documents": source.corpus.bytes_by_document,
            "args": {name: str(value) for name, value in vars(args).items()},
        }
        (args.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
        print(json.dumps(summary))


def kept_documents(data: Path, report: Path) -> list[Document]:
    """The training documents less those that the corpus report dropped."""
    dropped = json.loads(report.read_text())["dropped"]
    return [d for d in read_training(data) if f"{d.domain}/{d.name}" not in dropped]


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command's arguments."""
    parser = argparse.ArgumentParser(description="Train the bundled model.")
    parser.add_argument("--data", type=Path, required=True, help="folder with {prose,code,dialog}/train")
    parser.add_argument(
        "--report", type=Path, required=True, help="the corpus report that names dropped documents"
    )
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with tokenizer.json")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for checkpoint, log and exported weights"
    )
    parser.add_argument("--minutes", type=float, default=17.0, help="wall time of the whole schedule")
    parser.add_argument("--steps", type=int, default=0, help="stop after this many steps, 0 for none")
    parser.add_argument("--tokens", type=int, default=65536, help="tokens a step and GPU")
    parser.add_argument("--workers", type=int, default=14, help="generator processes a GPU")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tasks", choices=RECIPES, default="ruler", help="what the generated rows ask")
    parser.add_argument("--muon-rate", type=float, default=2e-3)
    parser.add_argument("--adam-rate", type=float, default=3e-3)
    parser.add_argument("--save-minutes", type=float, default=3.0)
    parser.add_argument("--cache", type=Path, help="file for the tokenised corpus (.npy)")
    parser.add_argument("--resume", action="store_true", help="go on from OUT/checkpoint.pt")
    parser.add_argument("--weights", type=Path, help="start from exported weights, without optimiser state")
    parser.add_argument(
        "--progress", type=float, default=0.0, help="where the schedule starts with --weights"
    )
    parser.add_argument("--stop", type=float, default=1.0, help="end at this progress, to go on elsewhere")
    parser.add_argument(
        "--prepare", action="store_true", help="only tokenise the corpus into --cache, then stop"
    )
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument(
        "--adapter", type=int, default=0, metavar="RANK", help="train an adapter of this rank on --weights"
    )
    parser.add_argument("--adapter-optimiser", choices=("adamw", "muon"), default="adamw")
    parser.add_argument("--adapter-rate", type=float, default=2e-3, help="of adamw; muon has --muon-rate")
    parser.add_argument(
        "--adapter-from", type=Path, help="an adapter's folder to go on from, without optimiser state"
    )
    args = parser.parse_args(argv)
    if args.adapter and not args.weights:
        parser.error(f"--adapter {args.adapter} is trained on a model; pass its folder by --weights")
    if args.adapter_from and not args.adapter:
        parser.error(f"--adapter-from {args.adapter_from} needs the rank of its factors; pass --adapter RANK")
    return args


def main(
    argv: list[str] | None = None, shape: Shape | None = None, phases: Sequence[Phase] | None = None
) -> None:
    """Train, log and save until the schedule or the time is over; see --help."""
    args = parse(argv)
    weights, its_phases = RECIPES[args.tasks]
    phases = phases or its_phases
    args.out.mkdir(parents=True, exist_ok=True)
    group = Group()
    tokenizer = load_tokenizer(args.tokenizer)
    corpus = Corpus.build(kept_documents(args.data, args.report), tokenizer, args.cache)
    if args.prepare:
        print(json.dumps({"corpus_tokens": len(corpus.tokens)}))
        return
    # Workers are forked before CUDA and the process group start: both do not survive a fork.
    source = BatchSource(
        corpus, tokenizer, tokens=args.tokens, workers=args.workers, rank=group.rank, weights=weights, phases=phases,
        seed=args.seed + (7919 if args.resume or args.weights else 0),
    )  # fmt: skip
    try:
        group.start()
        torch.manual_seed(args.seed)
        dtype = torch.bfloat16 if group.device.type == "cuda" else torch.float32
        model = Llama(shape or Shape(), dtype).to(group.device)
        if args.weights:
            load_weights(model, args.weights)
        if args.adapter:
            adapt(model, args.adapter)
            if args.adapter_from:
                load_factors(model, args.weights, args.adapter_from)
        made = optimisers(model, args, fused=group.device.type == "cuda")
        trainer = Trainer(model, group, made, adapted=args.weights if args.adapter else None)
        if args.resume and (args.out / "checkpoint.pt").exists():
            trainer.load(args.out / "checkpoint.pt")
        elif args.weights:
            trainer.progress = args.progress
        group.copy_parameters(trainer.parameters)
        if not args.no_compile:
            model.compile_parts()
        with attention_backend(group.device):
            run(trainer, source, args, phases)
    finally:
        source.close()
        group.finish()


if __name__ == "__main__":
    main()
