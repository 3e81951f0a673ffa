"""Every parser that meets bytes from outside, as fuzz targets: what it is fed, and the only errors that it may raise.

A case starts from what RouteSparse itself would write and is changed (``fuzzed/target.py``): fields replaced, dropped,
doubled and renamed, then bytes flipped, cut and repeated. Often that is one change alone, so that some cases of every
target are accepted: what lies behind a parser's first check is only tested by those. ``Sandbox`` watches every case: no
file is written outside its folder, no pickle is read, nothing is started, no address is looked up. A new target
stands in the file of ``fuzzed`` that holds its family of parsers.
"""

from __future__ import annotations

from tests.fuzz.fuzzed import asked, bundles, judged, measured, models, read_back
from tests.fuzz.fuzzed.target import Target

TARGETS: dict[str, Target] = {
    name: target
    for family in (asked, judged, measured, bundles, read_back, models)
    for name, target in family.TARGETS.items()
}
