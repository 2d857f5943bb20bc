"""The inventory of built artifacts: which exist, and whether they are unchanged."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator

from trainer.formats.attempt.kernels import BuiltArtifact, KernelCache
from trainer.kernels.native.artifacts import (
    ARCHITECTURES,
    Artifact,
    cuda_artifact,
    every_level,
    library_artifacts,
    own_levels,
)
from trainer.kernels.native.cache import Built, CacheError, cache_folders, damaged_files, find, others_of
from trainer.kernels.native.cuda_driver import CudaDriver, smoke
from trainer.kernels.native.launching import DeviceFacts, KernelError
from trainer.kernels.native.libraries import NotBuilt, cubins_for, library_file


def every_artifact(architectures: Iterable[str] = ARCHITECTURES) -> Iterator[Artifact]:
    """Yield all artifacts that this version can build, libraries first."""
    yield from library_artifacts(every_level())
    for architecture in architectures:
        artifact = cuda_artifact(architecture)
        if artifact:
            yield artifact


def artifacts_for_here(architectures: Iterable[str] = ()) -> Iterator[Artifact]:
    """Yield the artifacts for this machine's CPU, and for its GPU or the named ones."""
    yield from library_artifacts(own_levels()[:1])
    gpu = gpu_here()
    for architecture in architectures or ([f"sm_{gpu.capability[0]}{gpu.capability[1]}"] if gpu else []):
        artifact = cuda_artifact(architecture)
        if artifact:
            yield artifact


def kernel_cache(artifacts: Iterable[Artifact], thoroughly: bool) -> KernelCache:
    """Return the state of `artifacts` in the cache. thoroughly: read them again, load them, and run one on a GPU."""
    gpu = gpu_here()
    own = own_levels()[:1]
    listed = []
    for artifact in artifacts:
        is_used = _is_for(artifact, gpu) if artifact.is_cuda else artifact.target in own
        listed.append(_listed(artifact, is_used, thoroughly))
    return KernelCache(folders=[str(folder) for folder in cache_folders()], artifacts=listed)


def told(artifact: Artifact, state: str, why: str, built: Built | None, is_used: bool = False) -> BuiltArtifact:
    """Return the printed description of an artifact."""
    return BuiltArtifact(
        name=artifact.name,
        state=state,
        why=why,
        compiler=built.compiler if built else None,
        torch=built.torch if built else None,
        kernels=len(built.kernels) if built else 0,
        folder=str(built.folder) if built else None,
        used_here=is_used,
    )


def gpu_here() -> DeviceFacts | None:
    """Return the first GPU that this process sees; None without a driver or GPU."""
    try:
        driver = CudaDriver()
        return driver.facts(driver.device(0))
    except KernelError:
        return None


def _listed(artifact: Artifact, is_used: bool, thoroughly: bool) -> BuiltArtifact:
    try:
        built = find(artifact)
    except CacheError as error:
        return told(artifact, "untrusted" if "is not loaded" in str(error) else "damaged", str(error), None, is_used)
    if built is None:
        older = others_of(artifact.name, artifact.key)
        why = f"built of other sources, flags or torch: {older[0]}" if older else ""
        return told(artifact, "stale" if older else "missing", why, None, is_used)
    wrong = damaged_files(built) if thoroughly else []
    if wrong:
        why = f"{', '.join(wrong)} in {built.folder} changed since it was built: remove the folder and build again"
        return told(artifact, "damaged", why, built, is_used)
    why_not = _tried(artifact, built) if thoroughly and is_used else ""
    return told(artifact, "failed" if why_not else "ok", why_not, built, is_used)


def _tried(artifact: Artifact, built: Built) -> str:
    """Return why it cannot be used here; empty if it can."""
    try:
        if artifact.is_cuda:
            smoke(CudaDriver(), built.folder / built.kernels["smoke_f32"]["file"])
        else:
            ctypes.CDLL(str(built.folder / library_file(artifact.name.partition("-")[0])))
    except (OSError, KernelError) as error:
        return str(error)
    return ""


def _is_for(artifact: Artifact, gpu: DeviceFacts | None) -> bool:
    if gpu is None:
        return False
    found = cubins_for(gpu.capability)
    major, minor = gpu.capability
    wanted = f"sm_{major}{minor}" if isinstance(found, NotBuilt) else found.architecture
    return artifact.target == wanted
