"""Why an attack finds something or not, measured in what the server sees.

measuring  quantities of an interception
verdict    an adversary's requirements against them, and the sentence that says it
leaks      when an attack counts as one that leaks
diagnose   a recorded run's diagnosis.csv
foreseen   what follows from a scenario alone
"""
