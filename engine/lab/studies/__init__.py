"""One study a module or folder: what it compares, its command and its result file.

- What rules lose: ``selection/``.
- What a whole prefill takes, dense and routed: ``prefill.py``; in one process and in several: ``parallel.py``.

Studies that have concluded left their rows and pages in data/results; their
code is in git, at b6dfeee2 or the commit that a page names.
"""
