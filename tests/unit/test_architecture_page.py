"""Check that the architecture page names all packages, and nothing that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_every_package_is_on_the_page() -> None:
    packages = [path.parent for top in ("opsctl", "trainer") for path in (ROOT / top).glob("*/__init__.py")]
    assert [str(path.relative_to(ROOT)) for path in packages if f"`{path.relative_to(ROOT)}`" not in PAGE] == []


def test_every_module_on_the_page_exists() -> None:
    names = re.findall(r"`((?:opsctl|trainer|jobs|run|monitoring|diagnosis)[./][\w./]+)`", PAGE)
    paths = [
        ROOT.joinpath(*([] if name.startswith(("opsctl", "trainer")) else ["opsctl"]), *re.split(r"[./](?!py$)", name))
        for name in names
    ]
    assert len(paths) > 30
    assert [str(path) for path in paths if not path.exists() and not path.with_suffix(".py").is_file()] == []
