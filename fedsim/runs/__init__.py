"""The run folder, and the recording in it.

ledger            writes the run folder
growing           its files that grow or are replaced
tables            its tables as lines of CSV, and its paths
repair            its tables made whole again after a kill
attack_log        `attacks.jsonl`: what each ended attack depended on
provenance        versions, seed, and hashes of scenario, data and model
lock              its lock, so that two processes do not write at once
files             permissions of its files and folders
reading           reads the run folder
reconstructions   an attack's claim as a file of tensors
recording         what the server intercepted, for later attacks
index             the index of a recording
stored            tensors in files of a recording
truth             what one client of another Flower project trained on
truth_store       those files on the client's machine
"""
