"""`fedsim diagnose`: why the attacks on a run find something or not."""

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.options import AsJson, Data, Quiet, Trust, open_console, print_json


def diagnose(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder")],
    adversary: Annotated[
        list[str] | None,
        typer.Option("--adversary", metavar="NAME", help="A further adversary; repeat for several"),
    ] = None,
    data: Data = "",
    trust: Trust = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Say why each attack on a run leaks or not, and what to try; attacks nothing."""
    from fedsim.cli.working import loading

    with loading(open_console(stderr=as_json), quiet=quiet):
        from fedsim.diagnosis.diagnose import diagnose as diagnose_run
        from fedsim.references import look_in
        from fedsim.report import write_report
        from fedsim.report.diagnosis import FILE, explain
        from fedsim.runs.reading import printable
        from fedsim.scenario import AttackPlan

        if adversary:
            look_in([Path.cwd()])
        more = [AttackPlan(name=name).adversary("--adversary") for name in adversary or ()]
        table = diagnose_run(run, more, data=data or None, trust=trust)
        if (Path(run) / "report.html").is_file():
            write_report(Path(run))
    if as_json:
        print_json(table.to_dict("records"))
    elif not quiet:
        for one in explain(Path(run)):
            typer.echo(printable(str(one)))
        typer.echo(f"all {len(table)} rows: {run.rstrip('/')}/{FILE}")
