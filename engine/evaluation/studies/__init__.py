"""One study a module or folder: what it compares, its command and its result file.

- What routing costs and saves: ``prefill``, ``gpu_demo``, ``deciding``, ``first_prompt``.
- What it loses: ``needles``, ``long_context``, ``presses``, ``selection/`` beside other rules.
- Whether the certificates hold: ``coverage/``, ``detection/``, ``certify_trials``, ``certify_cost``.
- Prices chosen by quality: ``tuning`` measures, ``tuning_check`` and ``tuning_table`` judge.
- Many processes: ``node_kill``, ``many_writers`` (with ``one_writer`` and ``own_postgres``), ``fleet_false_alarms``.
- Tools: ``decisions/`` compares two versions, ``mask`` and ``indexer`` make what other studies read.

``rounds``, ``shared``, ``one_profile`` and ``tuning_windows`` are no studies, but what several of them share.
"""
