"""The run folder: read by `reading` and `measures`, written by `ledger` and `tape`."""
