"""Small sources of our own in place of csrc's, and a cache that no one else has."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.kernels.native import artifacts, building

ADDING = 'extern "C" __attribute__((visibility("default"))) int add(int a, int b) { return a + b + EXTRA; }\n'


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("OPSCTL_KERNELS_CACHE", str(folder))
    return folder


@pytest.fixture
def csrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a library `data` (a source and a header), a library `operations` with threads, and no kernels."""
    folder = tmp_path / "csrc"
    for name in ("cuda", "cpu", "data"):
        (folder / name).mkdir(parents=True)
    (folder / "data" / "extra.h").write_text("#define EXTRA 0\n")
    (folder / "data" / "adding.cpp").write_text('#include "extra.h"\n' + ADDING)
    (folder / "cpu" / "threads.cpp").write_text(
        '#include <omp.h>\nextern "C" __attribute__((visibility("default"))) int threads() {\n'
        "    int most = 0;\n#pragma omp parallel reduction(max : most)\n    most = omp_get_num_threads();\n"
        "    return most;\n}\n"
    )
    monkeypatch.setattr(artifacts, "csrc_folder", lambda: folder)
    monkeypatch.setattr(building, "csrc_folder", lambda: folder)
    return folder
