"""Attacks on interceptions: choice of victims, attacks, and the scores of what they claim.

campaign        the attacks of a run, made while it trains
victims         whom an adversary attacks in a round
executor        where attacks run: in this process, or as an engine provides it
attack          one attack, or a group of them: observation, time limit, claim
scoring         scores and pictures of a claim, against the truth
truths          truths joined, of several clients and rounds
progress        the progress of attacks while they run
probes          a client's training repeated, for attacks alone
keeping         which interceptions are recorded, and which stay
identity        what an attack depends on
ended           which attacks an earlier call ended, and which are made again
inversion       `fedsim.invert`: one attack on one update

Audits of other Flower projects:

audit           a campaign that knows only the settings that are stated
revealed        the project's task, made from its model and what clients revealed
modalities      the task by the modality of its inputs
classifier      its classifier, known from the model and one input
texts           its texts: tokens, word embeddings, padding, loss
utterances      its utterances, if it trains with CTC
consistency     whether what a client revealed explains its update
accumulation    weights of the batches in a step with gradient accumulation
unrepeatable    trainings that cannot be repeated, and why
contradiction   attacks that match the gradient and recover no revealed example
guesses         guesses without an update, for comparison
"""
