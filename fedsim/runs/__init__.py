"""The run folder: its reading half (`reading`, `measures`) and its writing half (`ledger`, `tape`)."""
