"""Flower: clients, the honest-but-curious server, strategies, secure aggregation.

The rounds of a run, on the server:

federate         the rounds of one run on a Grid; every engine calls this
server           the honest-but-curious server, around any strategy
receiver         one client's reply: an interception, or why it is refused
replies          the update in a reply, of fedsim's clients or another project's
fedsgd           FedSGD: clients send gradients, the server takes the step
strategies       strategies by name
utility          what a task's evaluation returns, checked
wrappers         followed clients, and the learning rate of each round
checkpoint       checkpoints, from which an interrupted run continues
spool            a round's replies on disk, if they need much memory

Messages between server and clients:

grid             Flower's Grid, and what replies say of their arrays
other_grids      Grids around a Grid of somebody else's
identities       which client a node is
senders          which node a reply is from
arrays           arrays that become bytes only where bytes are needed
contents         records of messages, without the type checks of Flower's classes
secure           secure aggregation, a package

A client:

client           fedsim's ClientApp: it trains and replies with a defended update
session          a process's run and model, kept between two messages
defended         the states of defenses; `defend`, for the clients of other projects
mods             Flower's own privacy mods as defenses

Audits of other Flower projects, whose clients run under `watch`:

project          the project's task, and what replies reveal
watching         watching a training function: what it trained on
training_hooks   what torch's global hooks see of one call of it
compiled         calls of models that were compiled in place
offered          the batches that `reveal` passes on, and which a model received
audit_log        what an audit says in Flower's log
"""
