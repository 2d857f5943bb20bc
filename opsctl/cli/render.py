"""`opsctl render`: exactly what would be submitted, without any effect."""

from __future__ import annotations

import click

from opsctl.cli.selection import cluster_option, json_option, run_argument


@click.command()
@run_argument
@cluster_option
@json_option(files="opsctl.jobs.control.json_output.RenderedFiles")
def command(run: str | None, cluster: str | None, as_json: bool) -> None:
    """Print the scripts and files that a submit would create.

    Prints the batch script, the step script and the arguments. Does not ask Slurm and changes nothing. Ids that only a
    submit creates are printed as placeholders.
    """
    import msgspec

    from opsctl.core.output import message, print_json, show, show_text
    from opsctl.jobs.control.json_output import RenderedFiles
    from opsctl.jobs.control.send_chain import ChainOptions, preview
    from opsctl.jobs.control.submit import check
    from opsctl.run.config.load import load_run_file
    from opsctl.run.config.locate import locate_run_file
    from opsctl.run.state.chosen_cluster import choose_cluster
    from opsctl.run.state.revisions import contents

    loaded = load_run_file(locate_run_file(run))
    asked = check(loaded, ChainOptions(), files=False)
    for warning in asked.warnings:
        message(f"warning: {warning}")
    everything = {
        "batch.sh": preview(asked.run, choose_cluster(cluster, loaded.paths), asked.options),
        **contents(asked.run),
    }
    if as_json:
        print_json("files", msgspec.convert(everything, RenderedFiles))
        return
    for name, text in everything.items():
        show(f"==> {name} <==")
        show_text(f"{text}\n")
