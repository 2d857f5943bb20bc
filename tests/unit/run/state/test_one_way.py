"""A run's state is opened and written in one module, so that there is one place that makes doing so safe."""

from __future__ import annotations

import ast

import pytest

from tests.unit.test_rooms import module_of, sources

STATE_FILES = ("opsctl.core.files.state_files", "opsctl.core.files.trusted", "opsctl.core.files.sealed")
#: What else opens files, and which: none of them is state that opsctl keeps of a run.
OTHERS = {
    "opsctl.transfer.backups.restore_checkpoint": "the folder in which it puts something together, to have it alone",
    "opsctl.diagnosis.carbon.estimate": "the installed codecarbon's table of countries",
    "opsctl.run.init.engine_file": "JSON that a script writes for DeepSpeed, as text",
    "opsctl.cli": "/dev/null, where a reader has left",
    "opsctl.cli.completion": "/dev/null, for messages while the user types",
    "opsctl.cli.init": "an example that is shipped with the product",
    "opsctl.cli.init_script": "a launch script that a person names, and the file of DeepSpeed that it names",
    "opsctl.jobs.scheduler.setup": "a script that a person names, and those that are shipped",
    "opsctl.local.demo.stage": "what a command printed, and the log",
    "opsctl.ui.doctor.sources": "/proc, and a file without a name that tries a file system",
    "opsctl.run.init.shell_script": "nothing: it reads the text of a launch script",
    "opsctl.run.environments.inspection": "a lock file that a person names",
    "opsctl.run.environments.recipe": "requirement files, which people write",
    "opsctl.transfer.hub.file_snapshot": "what is made for the hub, in memory",
    "opsctl.jobs.runner.program_node": "/proc",
    "opsctl.run.programs.saved_files": "another program's checkpoints, wherever it writes them",
    "opsctl.run.programs.transformers": "as saved_files",
    "opsctl.run.programs.megatron_lm": "as saved_files",
    "opsctl.run.programs.hook.opsctl_hook": "its report of a save; it runs in the program, without opsctl",
    "opsctl.jobs.runner.task": "the output folder, only to hold it",
    "opsctl.local.cluster.daemons": "the daemons' logs and pid files",
    "opsctl.local.cluster.configuration": "Slurm's configuration and keys",
    "opsctl.run.permissions.apply": "nothing: it holds what it changes the mode of",
    "opsctl.run.state.run_view": "the run file",
    "opsctl.run.config.secrets": "the file with a secret that the reader's own settings name",
    "opsctl.run.state.group_folder": "the output folder and what is in it, to open it to the group or close it",
    "opsctl.ui.report.log_source": "a training log that a person names, or a run's, which `trusted` opens",
    "opsctl.ui.report.html_page": "the page in a file that a person names, with its script and style",
    "opsctl.transfer.object_store.below": "what is copied, below a folder that is held open, through no link",
    "opsctl.transfer.object_store.folder": "the folder that is copied to or from",
    "opsctl.transfer.object_store.fsspec_store": "objects of a store, which are no files",
    "opsctl.transfer.object_store.store": "the folder that is copied from",
    "opsctl.slurm.process": "the slurm.conf that a local cluster's commands read",
    "opsctl.slurm.pyslurm_client": "what the program with pyslurm in it answers, through a pipe",
    "opsctl.slurm.pyslurm_program": "its answers, through a pipe",
    "opsctl.diagnosis.triage.line_prefixes": "a line of a log that is JSON, as text",
    "opsctl.diagnosis.triage.log_part": "a log that a person names",
    "opsctl.diagnosis.triage.read_evidence": "what ranks printed, some of each",
    "opsctl.core.dirwalk.file_system": "the kernel's table of what is mounted where",
    "opsctl.core.dirwalk.sequential": "folders, to list what is in them through no link",
    "opsctl.run.config.toml_file": "run files and profiles, which people write",
}
#: Functions of these names open a file or read JSON out of one, whatever they are called on.
OPENING = {"open", "fdopen", "read_bytes", "read_text", "write_bytes", "write_text", "link", "load", "loads"}
#: Those that have the same name and do not: state_files' own, called by their bare names.
BARE = {"read_text"}


def opening_calls(source: str) -> list[str]:
    """Return the calls in `source` that open a file, or decode one."""
    found: list[str] = []
    if not any(f"{name}(" in source for name in OPENING):
        return found
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr in OPENING:
            found.append(f"line {node.lineno}: {ast.unparse(function)}")
        elif isinstance(function, ast.Name) and function.id in OPENING - BARE:
            found.append(f"line {node.lineno}: {function.id}")
    return found


def test_state_is_opened_in_one_module() -> None:
    opening = {module_of(source): opening_calls(source.read_text()) for source in sources("opsctl")}
    found = {module: calls for module, calls in opening.items() if calls and module not in STATE_FILES}
    assert sorted(set(OTHERS) - set(found)) == [], "these open nothing: remove them from OTHERS"
    assert {module: calls for module, calls in found.items() if module not in OTHERS} == {}


@pytest.mark.parametrize(
    "line",
    ["open(p)", "p.open()", "os.open(p, 0)", "p.read_text()", "json.loads(x)", "tomllib.load(f)", "os.link(a, b)"],
)
def test_a_new_way_to_open_is_seen(line: str) -> None:
    assert opening_calls(f"def f():\n    return {line}\n")
