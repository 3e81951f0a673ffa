"""What a value of a bundle may be: the kinds of values of its columns, for the records' annotations.

Every field of ``rows.py`` and ``certificate_rows.py`` has one: the least and the most of a number, the words of a
choice, the length of a text. ``checks.py`` holds a bundle's tables to them, and to each other, before anything is
moved. What passes can be stored (whole numbers fit the store's columns) and drawn. Nothing that RouteSparse writes is
refused: shares may exceed 1 and fall below 0 by rounding, bounds that were not computed are NaN.
"""

from __future__ import annotations

from typing import Annotated

from routesparse.engine.config import AUDIT_DEPTHS, POLICIES, PRICES, PROBE_MODES
from routesparse.engine.store.rules import blob, number, one_of, text, whole

INT64 = 2**63 - 1
LARGEST = 1e15  # of a time or an error: sums of such numbers stay finite
ROUNDING = 1e-3  # of masses, which kernels sum in float32
_MOST_TOKENS = 1 << 28
_MOST_HEADS = 4_096  # and layers
_MOST_CANDIDATES = 1 << 12

RunId = Annotated[str, text(128)]
Time = Annotated[str, text(40, r"^\d{4}-\d\d-\d\dT")]
Name = Annotated[str, text(lines=True)]  # shown escaped
PatternName = Annotated[str, text(64, r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$")]
Budget = Annotated[str, text(200, r"^[^<>&\x00-\x1f\x7f]{1,200}$")]  # in words, no markup
Reason = Annotated[str, text(2_000)]
Passage = Annotated[str, text(10_000, lines=True)]  # shown escaped
Json = Annotated[str, text(1 << 18, lines=True)]  # the manifest has two of them
Step = Annotated[str, one_of(("expand", "dense"))]
Policy = Annotated[str, one_of(POLICIES)]
ProbeMode = Annotated[str, one_of(PROBE_MODES)]
AuditDepth = Annotated[str, one_of(AUDIT_DEPTHS)]
Limit = Annotated[str, text(40)]
Sweep = Annotated[str, text(64, r"^[0-9A-Za-z-]+$")]
Scope = Annotated[str, one_of(("head", "layer"))]
Prompt = Annotated[str, text(1 << 26, lines=True)]
Dtype = Annotated[str, one_of(("float64", "float32", "float16", "bfloat16"))]
Findings = Annotated[str, text(1 << 14, lines=True)]
NamedRows = Annotated[str, text(32, r"^([0-9]+|last):[0-9]+$")]

Mass = Annotated[float, number(-ROUNDING, 1 + ROUNDING)]
Bound = Annotated[float, number(-ROUNDING, 1 + ROUNDING, bound=True)]
Fraction = Annotated[float, number(0.0, 1.0)]
Amount = Annotated[float, number(-ROUNDING, LARGEST)]
Difference = Annotated[float, number(-LARGEST, LARGEST)]
# Relative to an output that may be as small as float32 has it; infinite where the output under test is.
Error = Annotated[float, number(0.0, 1e39, open=True)]
Tolerance = Annotated[float, number(0.0, 1e39)]
ExecutedError = Annotated[float, number(-ROUNDING, LARGEST, open=True)]
Price = Annotated[float, number(*PRICES)]
Scale = Annotated[float, number(0.0, 1e6)]

Seed = Annotated[int, whole(-INT64 - 1, INT64)]
Place = Annotated[int, whole()]  # also a number of units
Layer = Annotated[int, whole(0, _MOST_HEADS - 1)]
Head = Annotated[int, whole(0, _MOST_HEADS - 1)]
Dimension = Annotated[int, whole(1, _MOST_HEADS)]
Candidate = Annotated[int, whole(0, _MOST_CANDIDATES - 1)]
Steps = Annotated[int, whole(0, _MOST_CANDIDATES)]
Token = Annotated[int, whole(0, _MOST_TOKENS)]
Tokens = Annotated[int, whole(1, _MOST_TOKENS)]
Drawn = Annotated[int, whole(1)]
Same = Annotated[int, whole(0, 1 << 16)]
Few = Annotated[int, whole(1, 1 << 16)]
Cells = Annotated[int, whole(1, 1 << 20)]
Rows = Annotated[int, whole(0, INT64)]
AllRows = Annotated[int, whole(1, INT64)]

Blob1 = Annotated[bytes, blob(1)]  # of one byte a value, and so on
Blob2 = Annotated[bytes, blob(2)]
Blob4 = Annotated[bytes, blob(4)]
