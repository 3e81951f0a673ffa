"""One study a module or folder: what it compares, its command and its result file.

- What rules lose: ``selection/``.
- Whether the certificates hold: ``coverage/``.
- Whether two versions decide alike: ``decisions/``.

Studies that have concluded left their rows and pages in data/results; their
code is in git, at commit b6dfeee2.
"""
