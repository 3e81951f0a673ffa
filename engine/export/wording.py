"""Sentences that pages and reports both print beside certificates."""

from __future__ import annotations

# Stands wherever a certificate is shown.
CERTIFICATE_SCOPE = (
    "A certificate speaks about one head of one layer, or under the policy priced about the mean over one layer's "
    "heads, given the Q, K and V that this layer received. It does not speak about all layers jointly, nor about the "
    "network's output: what earlier layers lost is not in it."
)
# Stands wherever a head's certificate of a priced run is shown.
HEAD_FLOOR = (
    "Under the policy priced a head's certificate is a safety floor, so that no head is given up: reaching it says "
    "nothing about quality. The layer's certificate is the statement about what was kept."
)
