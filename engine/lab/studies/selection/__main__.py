"""``python -m routesparse.engine.lab.studies.selection``: see run.py."""

from routesparse.engine.lab import study
from routesparse.engine.lab.studies.selection.run import main

# A started process imports this file too.
if __name__ == "__main__":
    study.run(main)
