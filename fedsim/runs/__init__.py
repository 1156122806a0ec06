"""The run folder: `reading` and `measures` read it, `ledger` and `tape` write it."""
