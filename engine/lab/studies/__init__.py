"""One study a module or folder: what it compares, its command and its result file.

- What routing costs and saves: ``prefill``, ``gpu_demo``, ``deciding``.
- What it loses: ``selection/`` beside other rules.
- Whether the certificates hold: ``coverage/``, ``certify_trials``, ``certify_cost``.
- Prices chosen by quality: ``tuning`` measures, ``tuning_check`` and ``tuning_table`` judge.
- Tools: ``decisions/`` compares two versions, ``mask`` and ``indexer`` make what other studies read.

``shared``, ``one_profile`` and ``tuning_windows`` are no studies, but what several of them share.
"""
