"""Fixtures of the engine's tests: the slow twins, and real attention of the lab checkpoint. CPU only."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

AUDITED = {
    "plain-n713": {"n_q": 713},
    "chunk-nq333-nk901": {"n_q": 333, "n_k": 901},
    "padded-b2-n613": {"n_q": 613, "batch": 2, "key_start": [0, 137]},
    "softcap-n500": {"n_q": 500, "softcap": 3.0},
    "sinks-n500": {"n_q": 500, "sinks": True},
}


@pytest.fixture(scope="session", autouse=True)
def steady():
    """Where no stored latency profile fits, shipped costs stand in place of ones measured beside other tests."""
    import torch

    from routesparse.engine.profiles import measure
    from tests.engine import shipped_profile

    def profile_for(name, shape, config, *progress):
        if name == "auto" and measure.stored(shape, config) is None:
            return shipped_profile.of(shape, config)
        return found(name, shape, config, *progress)

    # As oracles.py does, whichever test asks for it first: a profile is of a number of threads.
    torch.set_num_threads(1)
    found = measure.profile_for
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "profile_for", profile_for)
        yield


@pytest.fixture(scope="session")
def no_plain_file():
    """Make what a reader must not wait for or fill the memory with: a "pipe", a "device" or a "folder"."""

    def make(path: Path, kind: str) -> None:
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "device":
            path.symlink_to("/dev/zero")
        else:
            assert kind == "folder"
            path.mkdir()

    return make


@pytest.fixture(scope="session")
def oracle():
    """The module of float64 twins (oracles.py in this folder)."""
    return import_module("tests.engine.oracles")


@pytest.fixture(scope="session")
def unit_by_unit():
    """The numpy twin of step 5 (fallback_oracle.py)."""
    return import_module("tests.engine.fallback_oracle")


@pytest.fixture(scope="session")
def postgres():
    """PostgreSQL's words for a server of this session."""
    from routesparse.engine.scale import ducklake
    from tests import own_postgres

    if not ducklake.installed():
        pytest.skip("DuckLake is not installed; `make ducklake` does it")
    if own_postgres.programs() is None:
        pytest.skip("PostgreSQL is not installed")
    with own_postgres.server() as words:
        yield words


@pytest.fixture(scope="session")
def empty_lake(postgres, tmp_path_factory):
    """The shared folder of a lake without runs in the database ``empty``: making one takes seconds, copying it none."""
    from routesparse.engine.scale.ducklake import PREFIX, LakeStore
    from tests import own_postgres

    shared = tmp_path_factory.mktemp("empty_lake")
    LakeStore(PREFIX + own_postgres.new_database(postgres, "empty"), shared, shared).close()
    return shared


@pytest.fixture
def new_lake(postgres, empty_lake, monkeypatch):
    """new_lake(shared folder): an empty lake of this test's own, which the environment names; its address."""
    from routesparse.engine.scale.ducklake import PREFIX
    from tests import own_postgres

    def made(shared):
        words = own_postgres.new_database(postgres, f"lake{secrets.token_hex(6)}", like="empty")
        shutil.copytree(empty_lake / "lake", shared / "lake")
        monkeypatch.setenv("ROUTESPARSE_STORE", PREFIX + words)
        monkeypatch.setenv("ROUTESPARSE_SHARED", str(shared))
        return PREFIX + words

    return made


@pytest.fixture(scope="session")
def lab():
    """Captured attention of the lab checkpoint on prose, code and a needle prompt (lab_attention.py)."""
    return import_module("tests.engine.lab_attention").Lab.load()


@pytest.fixture(scope="session")
def tiny_model():
    """The module that saves a tiny model with one token per byte (tiny_model.py)."""
    return import_module("tests.engine.tiny_model")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_model):
    """Where this model is saved."""
    return tiny_model.save(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def loaded(folder):
    """The same in memory."""
    from routesparse.engine.models.load import load_model

    return load_model(str(folder), device="cpu")


@pytest.fixture(scope="module")
def model(tiny_model, tmp_path_factory):
    """A tiny saved model with one token per byte, beside the latency profile that fits it."""
    return tiny_model.save_profiled(tmp_path_factory.mktemp("model"))


@pytest.fixture
def home(request, tmp_path, monkeypatch):
    """An empty home; of a test that has a ``model``, with the latency profile that this lies beside."""
    folder = tmp_path / "home"
    folder.mkdir()
    if "model" in request.fixturenames:
        (folder / "profiles").symlink_to(request.getfixturevalue("model").parent / "profiles")
    monkeypatch.setenv("ROUTESPARSE_HOME", str(folder))
    return folder


@pytest.fixture
def run(capsys):
    """Run one command; returns exit code, stdout, stderr."""
    from routesparse.engine.cli import main as cli

    def call(*arguments):
        code = cli.main([str(argument) for argument in arguments])
        output = capsys.readouterr()
        return code, output.out, output.err

    return call


@pytest.fixture
def printed(run):
    """printed(*arguments): what a command that must succeed writes to stdout."""

    def call(*arguments):
        code, out, err = run(*arguments)
        assert code == 0, err
        return out

    return call


def files_of(folder: Path) -> dict[str, str]:
    """Every file below a folder with its hash."""
    files = (path for path in Path(folder).rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def refused(run):
    """Run a command that must end in one line with exit code 2 and leave the home as it was; returns that line."""

    def call(*arguments):
        home = Path(os.environ["ROUTESPARSE_HOME"])
        before = files_of(home)
        code, out, err = run(*arguments)
        errors = [line for line in err.splitlines() if line.startswith("error: ")]
        assert (code, out, len(errors)) == (2, "", 1), (code, out, err)
        assert err.endswith(f"{errors[0]}\n"), "the error is the last line"
        assert files_of(home) == before
        return errors[0]

    return call


@pytest.fixture(params=AUDITED.values(), ids=AUDITED.keys())
def decided(request, oracle):
    """(inputs, decision, config) of a last segment: plain, chunk, padded, soft cap and sinks."""
    from routesparse.engine.decide.decision import LayerSettings
    from routesparse.engine.decide.layer import decide
    from routesparse.engine.method.segments import split

    inputs = oracle.draw_inputs(1, **request.param)
    settings = replace(oracle.SMALL, tau=0.4, gate_threshold=0.5)
    segment = split(inputs.q.shape[2], inputs.k.shape[2], settings)[-1]
    return inputs, decide(inputs, segment, 0, LayerSettings(settings, 0.5, oracle.PROFILE)), settings


@pytest.fixture
def config(oracle):
    """A gate that small random attention passes with sparse candidates."""
    return replace(oracle.SMALL, tau=0.5, gate_threshold=0.6)


@pytest.fixture
def start(oracle, config, monkeypatch):
    """start(config?) -> (session, call): call(inputs, layer) attends and keeps the plans that were lowered."""

    def make(settings=config, **extra):
        from routesparse.engine.runtime import session
        from routesparse.kernels.interface import RowPlan

        routed = session.RoutingSession(settings, profile=oracle.PROFILE, **extra)
        plans = []
        lowered = session.plan_of

        def keep(decision, inputs):
            plans.append(lowered(decision, inputs))
            return plans[-1]

        monkeypatch.setattr(session, "plan_of", keep)

        def call(inputs, layer=0, **more):
            plans.clear()
            out = routed.attend(inputs, layer=layer, **more)
            return out, RowPlan.concat(plans).to_mask() if plans else None

        return routed, call

    return make
