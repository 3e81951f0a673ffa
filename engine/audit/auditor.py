"""What a routing session hands its decisions to, so that somebody compares them with dense attention."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from routesparse.engine.config import AuditDepth
from routesparse.engine.decide.decision import Decision, LayerSettings
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.rows import Audited


@dataclass(frozen=True)
class Executed:
    """What ran: the layer's output [B, H, n_q, D], and which query blocks of the segment execution made dense for
    another reason than the choice (the tail, or a list that overflowed), bool [B, H, M]."""

    out: torch.Tensor
    dense_rows: torch.Tensor


class Auditor(ABC):
    """Looks at every decision of a session right after its layer ran; the time is not part of the prefill's."""

    @property
    def depth(self) -> AuditDepth:
        """As the run's record names it."""
        return "rows"

    @abstractmethod
    def audit(
        self, inputs: AttentionInputs, decision: Decision, settings: LayerSettings, executed: Executed
    ) -> Audited:
        """What the record keeps of one layer and segment; inputs and output are the layer's own."""
