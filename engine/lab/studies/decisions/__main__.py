"""Record what the router decides, or compare two recordings; ``python -m`` runs this file of the folder.

python -m routesparse.engine.lab.studies.decisions record BEFORE.json --texts FOLDER
python -m routesparse.engine.lab.studies.decisions record AFTER.json --like BEFORE.json
python -m routesparse.engine.lab.studies.decisions compare BEFORE.json AFTER.json

``--like`` asks the problems of another recording again; ``--texts FOLDER`` makes new ones from
FOLDER/{prose,code,dialog}/calibration/*.txt and generated needles. ``recording.py`` says how to ask another version.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from routesparse.engine.lab.studies.decisions import recording
from routesparse.engine.lab.studies.decisions.comparison import compare
from routesparse.engine.lab.studies.decisions.problems import new_problems


def main(argv: list[str] | None = None) -> None:
    """Exit code 1 where two recordings differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record", help="run the problems and write what was decided")
    record.add_argument("out", type=Path)
    source = record.add_mutually_exclusive_group(required=True)
    source.add_argument("--like", type=Path, help="a recording whose problems are asked again")
    source.add_argument("--texts", type=Path, help="folder of texts to make new problems from")
    comparing = commands.add_parser("compare", help="what differs between two recordings")
    comparing.add_argument("first", type=Path)
    comparing.add_argument("second", type=Path)
    arguments = parser.parse_args(argv)
    if arguments.command == "record":
        recording.use_one_thread()
        like = arguments.like
        problems = new_problems(arguments.texts) if like is None else recording.problems_of(like)
        recording.record(arguments.out, problems)
    elif compare(*(json.loads(path.read_text()) for path in (arguments.first, arguments.second))):
        sys.exit(1)


if __name__ == "__main__":
    main()
