"""Sentences that pages and reports both print beside certificates."""

from __future__ import annotations

# Stands wherever a certificate is shown.
CERTIFICATE_SCOPE = (
    "A certificate is about the mass that one head keeps, or under the policy priced a layer's heads on average, given "
    "the Q, K and V that the layer received: not about all layers jointly, nor the answer."
)
# Stands wherever a head's certificate of a priced run is shown.
HEAD_FLOOR = (
    "Under the policy priced a head's certificate is a floor, which says nothing about quality; the layer's says what "
    "was kept."
)
