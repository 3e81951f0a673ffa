"""Every suite by name."""

from __future__ import annotations

from routesparse.engine.errors import InputError
from routesparse.engine.lab.suites import infinitebench, longbench, pg19, ruler, stories
from routesparse.engine.lab.suites.suite import Suite

SUITES: dict[str, Suite] = {
    module.SUITE.name: module.SUITE for module in (ruler, infinitebench, pg19, longbench, stories)
}


def find(name: str) -> Suite:
    """Errors: InputError for an unknown suite."""
    if name not in SUITES:
        raise InputError(f"unknown suite {name!r}; use one of {', '.join(SUITES)}")
    return SUITES[name]
