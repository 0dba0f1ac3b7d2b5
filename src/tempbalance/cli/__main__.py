"""``python -m tempbalance.cli``."""

from tempbalance.cli.app import main

main()
