"""The command line: parsing, progress and exit codes, one module for each group of commands. Read `app` first."""

from tempbalance.cli.app import app as app
from tempbalance.cli.app import main as main
