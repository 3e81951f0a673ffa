"""Studies whose numbers stand in the README and in data/results; each is one command that writes one JSON file.

``studies/`` measures, ``report_*.py`` write the pages from the files that studies left, ``report.py`` runs them all.
``suites/`` and ``runner/`` are ``routesparse evaluate``, ``lm_eval*.py`` the same for lm-evaluation-harness.
``samples.py`` and ``ship_calibrations.py`` make what ships in data/.
"""
