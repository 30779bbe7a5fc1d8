# SPDX-License-Identifier: Apache-2.0
"""The command `depcache` and its subcommands."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import redirect_stdout
from types import FrameType
from typing import Annotated

import typer
from rich.text import Text

from depcache import __version__
from depcache.cli.ask import ask
from depcache.cli.demo import demo
from depcache.cli.finetune import finetune_app
from depcache.cli.graph import graph_app
from depcache.cli.inspect import config_app, explain, schema
from depcache.cli.invalidate import invalidate
from depcache.cli.output import (
    EXIT_INTERRUPTED,
    EXIT_PROBLEM,
    EXIT_TERMINATED,
    JSON_HELP,
    CheckedOutput,
    exit_code_of,
    make_console,
    make_grid,
    print_error,
    print_json,
)
from depcache.cli.picker import picker
from depcache.cli.precompute import precompute
from depcache.cli.recognise import recognise_file
from depcache.cli.serve import serve
from depcache.cli.status import status
from depcache.cli.tables import tables_app
from depcache.cli.tables_ahead import invalidate_tables, precompute_tables
from depcache.errors import ConfigError, DepCacheError

app = typer.Typer(
    name="depcache",
    help="GraphRAG prompts, served fast: the KV of a fact is computed once and reused.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.command(
    "serve",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    options_metavar="MODEL [OPTIONS] [ANY SGLANG FLAG]",
)(serve)
app.command("demo")(demo)
app.command("status")(status)
app.command("explain")(explain)
app.command("recognise")(recognise_file)
app.command("picker")(picker)
app.command("schema")(schema)
app.add_typer(config_app, name="config")
app.add_typer(graph_app, name="graph")
tables_app.command("precompute")(precompute_tables)
tables_app.command("invalidate")(invalidate_tables)
app.add_typer(tables_app, name="tables")
app.command("ask")(ask)
app.command("precompute")(precompute)
app.command("invalidate")(invalidate)
app.add_typer(finetune_app, name="finetune")


@app.command("doctor")
def doctor(
    server: Annotated[
        str | None, typer.Option(help="Check this server too, for example http://host:30000.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="DEPCACHE_API_KEY", help="Key of that server.")
    ] = None,
    client: Annotated[
        bool, typer.Option("--client", help="Check only what a client machine needs.")
    ] = False,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Import nothing: check versions, entry points and settings, not the hooks.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
) -> None:
    """Check what is installed and in place, and say what to do where it is not.

    The check for hooks imports SGLang, which takes ten seconds or more. With --server, the running
    server reports its own hooks, and nothing is imported here.

    Exit code 0 when all is in place, 1 when there is a problem.
    """
    from depcache.cli.doctor import is_healthy, run_checks, to_json

    checks = run_checks(server, api_key, is_client=client, is_quick=quick)
    if as_json:
        print_json(to_json(checks))
    else:
        table = make_grid(3)
        styles = {"ok": "green", "note": "yellow", "problem": "bold red"}
        for check in checks:
            text = f"{check.detail}\n→ {check.advice}" if check.advice else check.detail
            table.add_row(Text(check.state, styles[check.state]), check.name, Text(text))
        console = make_console()
        console.print(table, soft_wrap=False)
        problems = sum(check.state == "problem" for check in checks)
        verdict = f"{problems} to mend" if problems else "all in place"
        console.print(f"\n{verdict}", style="bold red" if problems else "bold green")
    if not is_healthy(checks):
        raise typer.Exit(EXIT_PROBLEM)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"depcache {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


def app_main() -> None:
    """Entry point of the console script; exit codes are in `depcache.cli.output`."""
    # So that a server that a command started is stopped with it.
    signal.signal(signal.SIGTERM, _terminate)
    try:
        # A closed stdout (`>&-`) is nobody's mistake: nothing is to be said.
        with redirect_stdout(CheckedOutput(sys.stdout or open(os.devnull, "w"))) as output:
            try:
                # Completion is asked for by a variable that is named after the program.
                app(prog_name="depcache")
            finally:
                output.flush()
    except DepCacheError as error:
        _fail(error)
    except OSError as error:
        _fail(ConfigError(f"this cannot be done here ({error}): check paths, rights and room"))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _fail(error: DepCacheError) -> None:
    try:
        print_error(error)
    finally:  # also where stderr takes nothing
        sys.exit(exit_code_of(error))


def _terminate(number: int, frame: FrameType | None) -> None:
    sys.exit(EXIT_TERMINATED)


if __name__ == "__main__":
    app_main()
