"""Add the manual pages to the wheel: `man opsctl-status` works where opsctl is installed."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ManPages(BuildHookInterface):  # type: ignore[type-arg]
    """The build hook. hatchling calls it for every wheel; an editable installation gets no pages."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the pages to a temporary folder and put them into the wheel's data."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        from opsctl.cli.man import pages

        self._folder = tempfile.TemporaryDirectory(prefix="opsctl-man-")
        for name, text in pages().items():
            page = Path(self._folder.name, name)
            page.write_text(text, encoding="utf-8")
            build_data["shared_data"][str(page)] = f"share/man/man1/{name}"
