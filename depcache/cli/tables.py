# SPDX-License-Identifier: Apache-2.0
"""`depcache tables ...`: load a schema into a catalog, look at it, find its tables in a prompt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table as Grid
from rich.text import Text

from depcache.cli.output import JSON_HELP, make_console, print_json, read_text
from depcache.cli.recognise import read_prompt

if TYPE_CHECKING:
    from depcache.tables.catalog import Catalog
    from depcache.tables.prompt_tables import FoundTables

DEFAULT_CATALOG = Path("tables.jsonl")
MAX_SHOWN_NOTES = 5

tables_app = typer.Typer(
    name="tables", help="Tables of a schema, for text-to-SQL prompts.", no_args_is_help=True
)
CatalogFile = Annotated[
    Path, typer.Option("--catalog", help="The file of the catalog, in JSON lines.")
]
AsJson = Annotated[bool, typer.Option("--json", help=JSON_HELP)]


@tables_app.command("load")
def load_source(
    source: Annotated[
        str,
        typer.Argument(
            help="An .sql file, a tables.json of Spider or BIRD, an .sqlite or .db file, the URL "
            "of a database, or another catalog."
        ),
    ],
    catalog: CatalogFile = DEFAULT_CATALOG,
    form: Annotated[
        str,
        typer.Option(help="How a table is written: ddl, ddl_comments, langchain or llamaindex."),
    ] = "ddl",
    dialect: Annotated[
        str | None, typer.Option(help="Dialect of an .sql file; guessed where it is not given.")
    ] = None,
    schema: Annotated[
        list[str] | None,
        typer.Option(help="Schema of a database, or database of a tables.json; several times."),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(help="Pattern of tables to take, like order*; several times."),
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Pattern of tables to leave out; several times.")
    ] = None,
    views: Annotated[bool, typer.Option("--views", help="Take views as tables too.")] = False,
    columns: Annotated[
        bool,
        typer.Option(
            "--columns",
            help="Make each column an entry of its own, TABLE.COLUMN, but for those of keys.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Read a schema and write its tables into a catalog.

    The catalog is replaced as a whole, and only when the source was read. What could not be read
    of it is said.
    """
    from depcache.tables.sources import load

    loaded = load(
        source,
        form=form,
        dialect=dialect,
        schemas=schema or (),
        views=views,
        columns=columns,
        include=include or (),
        exclude=exclude or (),
    )
    loaded.catalog.write(catalog)
    references = loaded.catalog.references
    answer = {
        "tables": len(loaded.catalog),
        "references": references.graph.number_of_edges(),
        "unknown_references": [list(pair) for pair in references.unknown],
        "units_in_cycles": [list(unit) for unit in references.cycles],
        "notes": list(loaded.notes),
        "digest": loaded.catalog.digest,
        "catalog": str(catalog),
    }
    if as_json:
        print_json(answer)
        return
    console = make_console()
    what = "tables and columns" if columns else "tables"
    console.print(
        f"{len(loaded.catalog):,} {what} and {answer['references']:,} references are in "
        f"{str(catalog)!r}",
        markup=False,
    )
    unknown = [f"{table} refers to {target}" for table, target in references.unknown]
    _print_some("references to tables that are not in it", unknown)
    _print_some("left out", loaded.notes)


@tables_app.command("show")
def show_tables(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Tables, or patterns like order*; all of the catalog if none is named."
        ),
    ] = None,
    catalog: CatalogFile = DEFAULT_CATALOG,
    dot: Annotated[
        bool, typer.Option("--dot", help="Print the references as a graph for Graphviz.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show tables, what they refer to, and what a prompt with them would hold."""
    from depcache.tables.catalog import Catalog

    found = Catalog.read(catalog)
    chosen = sorted(found.select(names)) if names else list(found.names)
    answer = to_json(found, chosen)
    if dot:
        print(to_dot(found, chosen), end="")
    elif as_json:
        print_json(answer)
    else:
        _print_tables(answer, with_text=bool(names))


@tables_app.command("find")
def find_tables(
    file: Annotated[
        Path, typer.Argument(help="JSON of messages or of a request, or a text; - is stdin.")
    ] = Path("-"),
    catalog: Annotated[
        Path | None,
        typer.Option(help="Find the tables of this catalog; without it, CREATE TABLE statements."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say which tables of a prompt would be recognised, which not, and why."""
    from depcache.tables.catalog import Catalog
    from depcache.tables.prompt_tables import PromptTables

    tables = "ddl" if catalog is None else Catalog.read(catalog)
    prompt = read_prompt(read_text(file))
    looked = PromptTables.make(tables, deadline_s=None).recognise(prompt)
    if as_json:
        print_json(found_to_json(looked))
    else:
        _print_found(looked)


def to_json(catalog: Catalog, names: list[str]) -> dict[str, Any]:
    """What `show --json` prints."""
    references = catalog.references
    unit_of = {name: list(unit) for unit in references.units for name in unit}
    closure = references.closure(names)
    shown = set(names)
    return {
        "tables": [
            {
                "name": name,
                "characters": len(catalog[name].text),
                "references": list(catalog[name].references),
                "unit": unit_of[name],
                "closure": list(references.closure([name])),
                "text": catalog[name].text,
            }
            for name in references.sort(names)
        ],
        "closure": list(closure),
        "added": [name for name in closure if name not in shown],
        "components": [list(each) for each in references.components if shown.intersection(each)],
        "digest": catalog.digest,
    }


def to_dot(catalog: Catalog, names: list[str]) -> str:
    """The references among tables and from them, as Graphviz reads it."""
    lines = ["digraph tables {"]
    for name in catalog.references.sort(names):
        lines.append(f"  {_dot(name)};")
        lines += [f"  {_dot(name)} -> {_dot(to)};" for to in catalog[name].references]
    return "\n".join([*lines, "}", ""])


def found_to_json(looked: FoundTables) -> dict[str, Any]:
    """What `find --json` prints. Places are code points of the message, or of the text."""
    found, outline = looked.found, looked.outline
    return {
        "message": looked.message,
        "outline": None if outline is None else outline.to_json(),
        "hits": [
            {
                "name": hit.table.name,
                "start": hit.start,
                "stop": hit.stop,
                "references": list(hit.table.references),
            }
            for hit in found.hits
        ],
        "unmatched": [
            {"start": each.start, "stop": each.stop, "reason": each.reason}
            for each in found.unmatched
        ],
        "reason": found.reason,
    }


def _print_tables(answer: dict[str, Any], *, with_text: bool) -> None:
    console = make_console()
    grid = Grid("table", "characters", "refers to", "with all it refers to", box=None)
    for each in answer["tables"]:
        grid.add_row(
            Text(each["name"]),
            f"{each['characters']:,}",
            Text(", ".join(each["references"])),
            Text(", ".join(each["closure"])),
        )
    console.print(grid, soft_wrap=False)
    if not with_text:
        return
    for each in answer["tables"]:
        console.print(f"\n{_printable(each['text'])}", markup=False)
    if answer["added"]:
        console.print(f"\na prompt also gets {', '.join(answer['added'])}", markup=False)


def _print_found(looked: FoundTables) -> None:
    console = make_console()
    found, text = looked.found, looked.text
    where = "the text" if looked.message is None else f"message {looked.message}"
    if found.hits:
        console.print(
            f"{len(found.hits)} tables in {where}, characters {found.hits[0].start} to "
            f"{found.hits[-1].stop} of {len(text)}"
        )
        grid = Grid("table", "at", "refers to", box=None)
        for hit in found.hits:
            names = ", ".join(hit.table.references)
            grid.add_row(Text(_printable(hit.table.name)), str(hit.start), Text(_printable(names)))
        console.print(grid, soft_wrap=False)
    else:
        console.print(f"no tables: {found.reason}", style="yellow", markup=False)
    begins = (" ".join(text[each.start : each.stop][:60].split()) for each in found.unmatched)
    lines = [
        f"at {each.start}: {each.reason}: {_printable(begin)}"
        for each, begin in zip(found.unmatched, begins, strict=True)
    ]
    _print_some("not in the context", lines)


def _print_some(title: str, lines: list[str] | tuple[str, ...]) -> None:
    if lines:
        console = make_console()
        console.print(f"{title}: {len(lines)}", style="yellow", markup=False)
        for line in lines[:MAX_SHOWN_NOTES]:
            console.print(f"  {line}", markup=False)
        if len(lines) > MAX_SHOWN_NOTES:
            console.print("  and more (--json shows all)", style="dim")


def _printable(text: str) -> str:
    """The text without what would move a terminal's cursor."""
    return "".join(each if each.isprintable() or each in "\n\t" else "�" for each in text)


def _dot(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
