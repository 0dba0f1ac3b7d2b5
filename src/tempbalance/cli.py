"""The command line: parsing and exit codes."""

from __future__ import annotations

from typing import Annotated

import typer

from tempbalance import __version__

app = typer.Typer(name="tempbalance", no_args_is_help=True, add_completion=False)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"tempbalance {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train neural networks layer by layer at the temperature each layer needs."""


if __name__ == "__main__":
    app()
