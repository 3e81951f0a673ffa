"""Launches ``triton_kernel``, which runs on any GPU that Triton supports and in Triton's interpreter.

The fastest configuration here is measured once per process and kind of problem.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch

from routesparse.kernels import common
from routesparse.kernels.attention.operands import LENGTHS, Loads, Operands, descriptor_strides
from routesparse.kernels.common import instead_of_launching

_chosen: dict[Hashable, Config] = {}
_TIMED_RUNS = 3


@dataclass(frozen=True)
class Config:
    """A launch configuration: whether whole blocks are loaded by TMA descriptors or by pointers, warps and stages."""

    descriptor: bool
    num_warps: int
    num_stages: int


def time_ms(run: Callable[[], None]) -> float:
    """The shortest of a few timed runs; the run before them compiles."""
    run()
    times = []
    for _ in range(_TIMED_RUNS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return min(times)


def fastest(
    kind: Hashable,
    configs: Sequence[Config],
    run: Callable[[Config], None],
    timed: Callable[[Callable[[], None]], float] = time_ms,
) -> Config:
    """The config with which ``run`` takes the least time; measured at the first call of this kind, then remembered.

    Measuring waits for the device, which a CUDA graph's capture forbids: there the first config is returned unmeasured.
    timed: milliseconds of a run; the seam for tests.
    """
    if len(configs) == 1:
        return configs[0]
    if instead_of_launching.get() is not None:
        # The measuring below will run them all.
        for config in configs:
            run(config)
        return configs[0]
    if kind not in _chosen:
        if torch.cuda.is_current_stream_capturing():
            return configs[0]
        _chosen[kind] = min(configs, key=lambda config: timed(lambda: run(config)))
    return _chosen[kind]


def launch(operands: Operands, loads: Sequence[Loads], interpreted: bool) -> None:
    """Fill ``out`` and ``lse`` by the fastest of ``loads``, each "descriptor" or "pointer"."""
    import triton

    q, plan = operands.q, operands.plan
    # Two stages of larger tiles would not fit the shared memory of an A100.
    stages = 2 if triton.next_power_of_2(q.shape[3]) * q.element_size() <= 256 else 1
    warps = 8 if plan.block_q >= 128 else 4
    configs = [Config(way == "descriptor", warps, stages) for way in loads]
    # Which optional fields the plan has are the kernel's flags.
    flags = (option is not None for option in (plan.key_start, plan.window, plan.softcap, plan.sinks))
    sizes = q.shape[3], plan.block_q, plan.block_k
    kind = (q.device, q.dtype, *sizes, plan.columns.shape[3] > 0, *flags)

    def run(config: Config) -> None:
        _launch(operands, config, interpreted)

    run(fastest(kind, configs, run))


def _launch(operands: Operands, config: Config, interpreted: bool) -> None:
    import triton
    from triton.tools.tensor_descriptor import TensorDescriptor

    from routesparse.kernels.attention.triton_kernel import sparse_attention_kernel

    q, k, plan, scale = operands.q, operands.k, operands.plan, operands.scale
    head_padded = max(16, triton.next_power_of_2(q.shape[3]))

    def described(tensor: torch.Tensor) -> TensorDescriptor | None:
        if not config.descriptor:
            return None
        tile = [1, 1, plan.block_k, head_padded]
        return TensorDescriptor(tensor, list(tensor.shape), descriptor_strides(tensor), tile)

    common.launch(
        sparse_attention_kernel,
        (operands.order.numel(),),
        operands.arguments(),
        lengths=LENGTHS,
        q=q,
        k_desc=described(k),
        v_desc=described(operands.v),
        out=operands.out,
        key_start=plan.block_count if plan.key_start is None else plan.key_start.contiguous(),
        window=plan.window or 0,
        # A soft cap is a tanh, which the kernel computes as a sigmoid of twice the argument.
        scale_log2=scale * math.log2(math.e) if plan.softcap is None else 2.0 * scale / plan.softcap,
        softcap_log2=(plan.softcap or 0.0) * math.log2(math.e),
        BLOCK_Q=plan.block_q,
        BLOCK_K=plan.block_k,
        HEAD_PADDED=head_padded,
        KEY_START=plan.key_start is not None,
        WINDOW=plan.window is not None,
        SOFTCAP=plan.softcap is not None,
        # The interpreter's bf16 matrix product is silently wrong.
        UPCAST=interpreted,
        PRECISION="ieee" if q.dtype == torch.float32 or interpreted else "tf32",
        DESCRIPTOR=config.descriptor,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
