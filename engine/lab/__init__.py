"""The lab: what measures RouteSparse and its rivals. Nothing outside imports it but commands, when they are called.

``studies/`` measures, ``rivals/`` are other rules on our kernel, ``bench/`` times. ``suites/`` and ``runner/`` are
``routesparse evaluate``, ``harness/`` the same for lm-evaluation-harness; ``shipped/`` makes what ships in data/.
"""
