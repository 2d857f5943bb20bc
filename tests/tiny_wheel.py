"""Wheels small enough for a test, and virtual environments without a network."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from uv import find_uv_bin


def make_wheel(folder: Path, name: str, version: str, needs: tuple[str, ...] = (), text: str = "") -> Path:
    """A wheel of one module `name`, which has `VERSION` and `text`, in `folder`."""
    about = f"{name}-{version}.dist-info"
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {one}" for one in needs),
    ]
    files: Mapping[str, str] = {
        f"{name}.py": f"VERSION = {version!r}\n{text}",
        f"{about}/METADATA": "\n".join(lines) + "\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={_digest(content)},{len(content)}\n" for path, content in files.items())
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in {**files, f"{about}/RECORD": f"{record}{about}/RECORD,,\n"}.items():
            archive.writestr(zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0)), content)
    return wheel


def make_venv(folder: Path, *wheels: Path) -> Path:
    """A virtual environment with these wheels in it; its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    python = folder / "bin" / "python"
    install(python, *wheels)
    return python


def install(python: Path, *wheels: Path) -> None:
    """Put wheels into an environment, over what it has of them."""
    if wheels:
        uv = [
            find_uv_bin(),
            "pip",
            "install",
            "--quiet",
            "--offline",
            "--no-index",
            "--no-deps",
            "--no-cache",
            "--reinstall",
        ]
        subprocess.run([*uv, "--python", str(python), *map(str, wheels)], check=True, timeout=60)


def _digest(content: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).decode().rstrip("=")
