"""Secure aggregation: the server learns the sum of the clients' updates, and no update.

masking.py      fixed point, pairwise masks and who shares them; numpy alone
client.py       the client's part, as a Flower mod
maskedsum.py    the server's part of "masked-sum", an emulation
secaggplus.py   both parts of "secagg+", Flower's own protocol
grid.py         SecureGrid, which conducts a protocol and hands on the one mean
"""

__all__ = ["CLIENTS_KEY", "MASKED_KEY", "ROUND_KEY", "SECAGGPLUS_KEY"]

ROUND_KEY = "fedsim.secure"
"""In a message: what a client has to know to take part in the protocol this round."""

MASKED_KEY = "fedsim.masked"
"""In a reply: the masked vector."""

CLIENTS_KEY = "fedsim.clients"
"""In the reply that a `SecureGrid` makes: whose updates were added up."""

SECAGGPLUS_KEY = "secaggplus_configs"
"""In messages and replies of SecAgg+: the name that Flower's protocol gives its own record."""
