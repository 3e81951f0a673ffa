"""``python -m routesparse.engine.evaluation.studies.selection``: see run.py."""

from routesparse.engine.evaluation import study
from routesparse.engine.evaluation.studies.selection.run import main

# A started process imports this file too.
if __name__ == "__main__":
    study.run(main)
