"""``routesparse doctor`` on a machine with a GPU: what Triton compiles its first module with."""

import sysconfig

import pytest

from routesparse.engine.doctor import checks as doctor


@pytest.fixture
def headers(monkeypatch, tmp_path):
    """A folder that Python calls its include folder."""
    monkeypatch.setattr(sysconfig, "get_path", lambda name, scheme: str(tmp_path))
    return tmp_path


def test_a_compiler_needs_pythons_headers_which_are_named_with_what_to_install(monkeypatch, headers):
    monkeypatch.setenv("CC", "sh")
    found = doctor.compiler()
    assert found.status == "problem" and "python3-dev" in found.detail
    assert str(headers / "Python.h") in found.detail
    (headers / "Python.h").touch()
    found = doctor.compiler()
    assert found.status == "ok" and "sh" in found.detail


@pytest.mark.parametrize(
    ("named", "said"), [("no-such-compiler", "CC=no-such-compiler"), ("", "CC="), (None, "gcc or clang")]
)
def test_a_missing_compiler_is_a_problem(monkeypatch, headers, named, said):
    monkeypatch.delenv("CC", raising=False)
    if named is not None:
        monkeypatch.setenv("CC", named)
    monkeypatch.setenv("PATH", str(headers))
    found = doctor.compiler()
    assert found.status == "problem" and said in found.detail and "install gcc" in found.detail
