# SPDX-License-Identifier: Apache-2.0
"""`depcache tables precompute|invalidate`: the tables of a catalog in the cache of a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from depcache.cli.ask import ApiKey, Server
from depcache.cli.invalidate import show_rest
from depcache.cli.output import make_console, print_json
from depcache.cli.precompute import (
    System,
    SystemFile,
    read_system,
    run_job,
    show_estimate,
    show_report,
)
from depcache.cli.tables import DEFAULT_CATALOG, AsJson, CatalogFile
from depcache.client.client import DEFAULT_URL, Client
from depcache.prompt.render import DEFAULT_TABLE_SYSTEM

DEFAULT_STATE = Path("depcache-tables.jsonl")
Sees = Annotated[
    str, typer.Option(help="What a table of later requests sees, as for `depcache ask`.")
]
Salt = Annotated[str | None, typer.Option(help="The `cache_salt` of later requests.")]


def precompute_tables(
    catalog: CatalogFile = DEFAULT_CATALOG,
    alone: Annotated[
        bool,
        typer.Option(
            "--alone", help="Also each table without those that it refers to, for open prompts."
        ),
    ] = False,
    sets: Annotated[
        Path | None,
        typer.Option(help="Also these sets of tables: a JSON list of names a line, as from a log."),
    ] = None,
    sees: Sees = "references",
    server: Server = DEFAULT_URL,
    api_key: ApiKey = None,
    system: System = None,
    system_file: SystemFile = None,
    salt: Salt = None,
    state: Annotated[
        Path, typer.Option(help="File that keeps the progress; rerun with it to resume.")
    ] = DEFAULT_STATE,
    request_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of one request.")] = 4096,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Only estimate the work, and do none.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compute the KV of a catalog's tables now, so that prompts that hold any of them find it.

    Each table is computed with all it refers to, and what is referred to comes first, so nothing is
    computed twice. The text before the tables decides their KV: give the system message that your
    requests have.
    """
    from depcache.precompute import Precomputer, TableSource, read_sets
    from depcache.tables.catalog import Catalog

    source = TableSource(
        Catalog.read(catalog),
        alone=alone,
        sets=() if sets is None else read_sets(sets),
        sees=sees,
        system=read_system(system, system_file, DEFAULT_TABLE_SYSTEM),
        fields=_fields(salt),
    )
    with Client(server, api_key) as client:
        job = Precomputer(source, client, state=state, request_tokens=request_tokens)
        plan = job.plan()
        for note in plan.notes:
            make_console(stderr=as_json).print(f"note: {note}", style="yellow", markup=False)
        if not as_json or not estimate:
            show_estimate(plan.estimate, {}, stderr=as_json)
        answer = {"estimate": plan.estimate.to_json(), "notes": list(plan.notes)}
        if estimate:
            if as_json:
                print_json(answer)
            return
        # One request after the other: two at once could compute what both hold.
        report = run_job(job, plan, 1)
    if as_json:
        where = {"catalog": str(catalog), "state": str(state)}
        print_json({**report.to_json(), **answer, **where})
    else:
        show_report(report)


def invalidate_tables(
    old: Annotated[Path, typer.Option(help="The catalog as it was when it was computed.")],
    catalog: CatalogFile = DEFAULT_CATALOG,
    sees: Sees = "references",
    server: Server = DEFAULT_URL,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="DEPCACHE_API_KEY", help="The server's admin key, or else its key."),
    ] = None,
    system: System = None,
    system_file: SystemFile = None,
    salt: Annotated[
        str | None, typer.Option(help="Drop only the tables of the tenant with this `cache_salt`.")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(help="State file of `precompute`; its next run computes these tables again."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only name the tables that are affected.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Drop the cached tables that a change of the schema touches, and no others, in every tier.

    Those are the tables that were changed or removed, and all that refer to them.

    This frees memory; correctness does not need it. KV is found by the tokens of a table, so no
    answer uses the KV of a table as it was.
    """
    from depcache.precompute import find_stale
    from depcache.precompute import invalidate_tables as give_up_tables
    from depcache.tables.catalog import Catalog

    before, after = Catalog.read(old), Catalog.read(catalog)
    if dry_run:
        found = find_stale(before, after, state=state)
    else:
        with Client(server, api_key) as client:
            found = give_up_tables(
                before,
                after,
                client,
                sees=sees,
                system=read_system(system, system_file, DEFAULT_TABLE_SYSTEM),
                fields=_fields(salt),
                state=state,
            )
    difference = after.difference(before)
    if as_json:
        said = found.to_json()
        print_json(
            {
                "added": list(difference.added),
                "removed": list(difference.removed),
                "changed": list(difference.changed),
                "stale": said["entities"],
                **{key: said[key] for key in _COUNTS},
                "dry_run": dry_run,
                "catalog": str(catalog),
            }
        )
        return
    console = make_console()
    for name in found.entities if dry_run else ():
        console.print(name, markup=False)
    tiers = ", ".join(f"{num:,} on {tier}" for tier, num in found.tokens.items() if num)
    given_up = "" if dry_run else f"; tokens given up: {tiers or 'none'}"
    console.print(f"{len(found.entities):,} tables are affected{given_up}")
    show_rest(found, dry_run)


_COUNTS = ("tokens", "in_use", "refused", "problems", "forgotten")


def _fields(salt: str | None) -> dict[str, Any]:
    return {} if salt is None else {"cache_salt": salt}
