"""Secure aggregation, by which the server learns the sum of the clients' updates alone.

masking.py      fixed point, pairwise masks and who shares them; numpy alone
client.py       the client's part, as a Flower mod
maskedsum.py    the server's part of "masked-sum", an emulation
secaggplus.py   both parts of "secagg+", Flower's own protocol
grid.py         SecureGrid, which runs a protocol and passes on the mean
"""

ROUND_KEY = "fedsim.secure"
"""Key of a message's record with the protocol's parameters for one client and round."""

MASKED_KEY = "fedsim.masked"
"""Key of a reply's record with the masked vector."""

CLIENTS_KEY = "fedsim.clients"
"""Key of the record, in the reply of a `SecureGrid`, with the clients whose updates are in it."""

SECAGGPLUS_KEY = "secaggplus_configs"
"""Key of the record that Flower's SecAgg+ uses in messages and replies."""
