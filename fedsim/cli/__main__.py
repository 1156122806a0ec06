"""Run the command line with `python -m fedsim.cli`."""

from fedsim.cli import main

main()
