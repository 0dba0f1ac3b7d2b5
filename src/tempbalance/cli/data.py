"""Commands of datasets: list, fetch, path."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.filesize import decimal
from rich.table import Table

from tempbalance.cli.terminal import answered, stoppable, tell, wide_output

data = typer.Typer(no_args_is_help=True, help="Datasets: list them, fetch them before runs need them, find them.")

_Cache = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(help="Folder of datasets.", show_default="$TEMPBALANCE_CACHE or the system's folder for caches"),
]
_Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="Datasets; see data list.")]


@data.command("list")
def list_(cache: _Cache = None) -> None:
    """List all datasets with their sizes, whether they are fetched, and their terms of use."""
    with answered("lab"):
        from tempbalance.lab.download import cache_folder, is_fetched, remote_data

        table = Table()
        for name in ("dataset", "size", "fetched", "licence"):
            table.add_column(name, justify="right" if name == "size" else "left", no_wrap=name != "licence")
        for name, each in remote_data().items():
            fetched = "yes" if is_fetched(name, cache=cache) else "no"
            size = decimal(each.num_bytes, precision=int(each.num_bytes >= 1e9))
            table.add_row(name, size, fetched, each.licence)
        wide_output(160).print(table)
        tell(f"They are kept in {cache_folder(cache)}")


@data.command()
def fetch(names: _Names, cache: _Cache = None) -> None:
    """Download datasets, so that machines without network that share the folder find them."""
    with answered("lab"), stoppable():
        from tempbalance.lab.download import fetch_data, find_data

        for name in names:
            find_data(name)
        for name in dict.fromkeys(names):
            for path in fetch_data(name, cache=cache):
                tell(path)


@data.command()
def path(name: Annotated[str, typer.Argument(metavar="NAME", help="A dataset.")], cache: _Cache = None) -> None:
    """Print where the files of a dataset are, or will be."""
    with answered("lab"):
        from tempbalance.lab.download import data_paths

        for each in data_paths(name, cache=cache):
            tell(each)
