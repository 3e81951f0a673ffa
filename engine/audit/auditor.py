"""What a routing session hands its decisions to, so that somebody compares them with dense attention."""

from __future__ import annotations

from abc import ABC, abstractmethod

from routesparse.engine.config import AuditDepth
from routesparse.engine.decide.decision import Decision
from routesparse.engine.decide.settings import LayerSettings
from routesparse.engine.method.inputs import AttentionInputs
from routesparse.engine.rows import AuditRow


class Auditor(ABC):
    """Looks at every decision of a session right after its layer ran; the time is not part of the prefill's."""

    @property
    def depth(self) -> AuditDepth:
        """As the run's record names it."""
        return "rows"

    @abstractmethod
    def audit(self, inputs: AttentionInputs, decision: Decision, settings: LayerSettings) -> list[AuditRow]:
        """The record's rows of one layer and segment, run_id left empty; inputs are the layer's own."""
