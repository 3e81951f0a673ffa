"""The bundled model's training form: a Llama in pure functions, exported to transformers' LlamaForCausalLM.

Everything but attention works on flat tokens [T, hidden], so that one compiled graph serves every context
length with the same number of tokens a step. Parameter names are transformers' own; `export` writes bf16
weights, and a test holds that both forms give the same logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HEAD = 64


@dataclass(frozen=True)
class Shape:
    """Sizes of the model; the defaults are the bundled one's: 15.7M parameters, 31.5 MB in bf16."""

    hidden: int = 384
    mlp: int = 1024
    heads: int = 8
    kv_heads: int = 4
    layers: int = 8
    vocabulary: int = 4096
    max_position: int = 131072
    theta: float = 1e6
    eps: float = 1e-6


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class Attention(nn.Module):
    """The projections of one layer's attention, named as in transformers' Llama."""

    def __init__(self, s: Shape):
        super().__init__()
        self.q_proj = _linear(s.hidden, s.heads * HEAD)
        self.k_proj = _linear(s.hidden, s.kv_heads * HEAD)
        self.v_proj = _linear(s.hidden, s.kv_heads * HEAD)
        self.o_proj = _linear(s.heads * HEAD, s.hidden)


class Mlp(nn.Module):
    """The gated feed-forward part of one layer."""

    def __init__(self, s: Shape):
        super().__init__()
        self.gate_proj = _linear(s.hidden, s.mlp)
        self.up_proj = _linear(s.hidden, s.mlp)
        self.down_proj = _linear(s.mlp, s.hidden)


class Layer(nn.Module):
    """Weights of one decoder layer; the forward pass over packed rows is ``Llama``'s."""

    def __init__(self, s: Shape):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(s.hidden)
        self.self_attn = Attention(s)
        self.post_attention_layernorm = nn.RMSNorm(s.hidden)
        self.mlp = Mlp(s)


class Body(nn.Module):
    """Embedding, layers and the last norm."""

    def __init__(self, s: Shape):
        super().__init__()
        self.embed_tokens = nn.Embedding(s.vocabulary, s.hidden)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.norm = nn.RMSNorm(s.hidden)


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm, in float32, as transformers computes it."""
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    return weight.to(x.dtype) * y.to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [T, heads, 64] by cos, sin [T, 1, 64], halves rotated as in transformers."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def before_attention(x, norm, wq, wk, wv, cos, sin, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """x [T, hidden] -> q [T, heads, 64], k and v [T, kv heads, 64], rotated."""
    h = rms(x, norm, eps)
    q, k, v = (F.linear(h, w.to(x.dtype)).unflatten(-1, (-1, HEAD)) for w in (wq, wk, wv))
    return rotate(q, cos, sin), rotate(k, cos, sin), v


def after_attention(x, attended, norm, wo, gate, up, down, eps: float) -> Tensor:
    """Residual output projection and gated MLP, [T, hidden]."""
    x = x + F.linear(attended, wo.to(x.dtype))
    h = rms(x, norm, eps)
    return x + F.linear(F.silu(F.linear(h, gate.to(x.dtype))) * F.linear(h, up.to(x.dtype)), down.to(x.dtype))


def head_loss(x, norm, embedding, targets, weights, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted cross-entropy sum, then per-token loss and hit [T] without gradient."""
    logits = F.linear(rms(x, norm, eps), embedding.to(x.dtype)).float()
    loss = F.cross_entropy(logits, targets, reduction="none")
    return (loss * weights).sum(), loss.detach(), logits.detach().argmax(-1) == targets


class Llama(nn.Module):
    """The trainable model. `compile_parts` compiles the three token-wise functions; attention stays SDPA."""

    def __init__(self, shape: Shape, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.shape, self.dtype = shape, dtype
        self.model = Body(shape)
        self._before: Callable = before_attention
        self._after: Callable = after_attention
        self._head: Callable = head_loss
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                fan_in = parameter.shape[1]
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                std = 0.02 if "embed" in name else fan_in**-0.5 * (0.1 if residual else 1.0)
                nn.init.normal_(parameter, std=std)

    def compile_parts(self) -> None:
        """Compile what lies between two attentions, and the loss; attention itself stays a kernel's."""
        self._before = torch.compile(before_attention, dynamic=False)
        self._after = torch.compile(after_attention, dynamic=False)
        self._head = torch.compile(head_loss, dynamic=False)

    def rotary(self, length: int, rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """cos and sin [rows * length, 1, 64] of positions 0..length-1, repeated for every row."""
        powers = torch.arange(0, HEAD, 2, device=device, dtype=torch.float32) / HEAD
        angles = torch.outer(
            torch.arange(length, device=device, dtype=torch.float32), self.shape.theta**-powers
        )
        angles = torch.cat((angles, angles), dim=-1).repeat(rows, 1).unsqueeze(1)
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)

    def hidden(self, ids: Tensor) -> Tensor:
        """Token ids [rows, length] -> last hidden states before the final norm [rows * length, hidden]."""
        rows, length = ids.shape
        cos, sin = self.rotary(length, rows, ids.device)
        eps, s = self.shape.eps, self.shape
        x = F.embedding(ids.flatten(), self.model.embed_tokens.weight.to(self.dtype))
        for module in self.model.layers:
            layer = cast(Layer, module)
            a, m = layer.self_attn, layer.mlp
            parts = self._before(
                x,
                layer.input_layernorm.weight,
                a.q_proj.weight,
                a.k_proj.weight,
                a.v_proj.weight,
                cos,
                sin,
                eps,
            )
            q, k, v = (part.view(rows, length, -1, HEAD).transpose(1, 2) for part in parts)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            y = y.transpose(1, 2).reshape(rows * length, s.heads * HEAD)
            x = self._after(
                x, y, layer.post_attention_layernorm.weight, a.o_proj.weight,
                m.gate_proj.weight, m.up_proj.weight, m.down_proj.weight, eps,
            )  # fmt: skip
        return x

    def loss(self, ids: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """ids, targets, weights [rows, length] -> weighted loss sum, loss and hit of every target [T]."""
        x = self.hidden(ids)
        embedding = self.model.embed_tokens.weight
        return self._head(
            x, self.model.norm.weight, embedding, targets.flatten(), weights.flatten(), self.shape.eps
        )

    def logits(self, ids: Tensor) -> Tensor:
        """Logits [rows, length, vocabulary]; for tests."""
        x = rms(self.hidden(ids), self.model.norm.weight, self.shape.eps)
        return F.linear(x, self.model.embed_tokens.weight.to(self.dtype)).view(*ids.shape, -1)


def export(model: Llama, folder: Path) -> None:
    """Write config and bf16 safetensors that AutoModelForCausalLM loads."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    s = model.shape
    config = LlamaConfig(
        hidden_size=s.hidden, intermediate_size=s.mlp, num_attention_heads=s.heads, num_key_value_heads=s.kv_heads,
        num_hidden_layers=s.layers, vocab_size=s.vocabulary, head_dim=HEAD, max_position_embeddings=s.max_position,
        rope_parameters={"rope_type": "default", "rope_theta": s.theta}, rms_norm_eps=s.eps,
        tie_word_embeddings=True, bos_token_id=0, eos_token_id=1, dtype="bfloat16",
    )  # fmt: skip
    exported: Any = LlamaForCausalLM(config)
    state = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    exported.load_state_dict(state)
    exported.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=1, do_sample=False)
    exported.to(torch.bfloat16).save_pretrained(folder)


def load_weights(model: Llama, folder: Path) -> None:
    """Read exported weights back, to go on training without the optimiser's state."""
    from safetensors.torch import load_file

    state = load_file(folder / "model.safetensors")
    state.pop("lm_head.weight", None)
    model.load_state_dict({name: value.float() for name, value in state.items()})
