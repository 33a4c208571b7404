"""python -m flyk: the command line."""

from flyk.cli import main

main()
