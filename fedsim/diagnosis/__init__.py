"""Why an attack finds something or not, measured in what the server sees.

measuring     quantities of an interception
head          those of the head's gradient
first_layer   those of the first linear layer's
counting      how many input values the gradient leaves open
cost          how long that takes
verdict       an adversary's requirements against them, and the sentence that says it
leaks         how an attack ended, and when it counts as one that leaks
rows          the rows of an update in diagnosis.csv
diagnose      a run's diagnosis.csv
foreseen      what follows from a scenario alone

The sentences on a whole run are made in `fedsim.report.diagnosis`, which needs no torch.
"""
