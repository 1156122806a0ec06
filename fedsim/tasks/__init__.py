"""The tasks that come with fedsim; their base class is `fedsim.task.Task`.

images           images: data and task
text             texts
speech           utterances of speakers
tabular          rows of tables
classification   base class of the tasks with inputs of one shape
partitioned      base class of the tasks whose examples are divided among clients
partition        how they are divided
composition      which examples each batch has
models           classifiers that a scenario can name
pretrained       models of the `transformers` library
local_data       data sets by name or path
transcripts      transcripts of speech
wordpieces       labels of transcripts: characters or word pieces
"""

from fedsim.task import Task, evaluating

__all__ = ["Task", "evaluating"]
