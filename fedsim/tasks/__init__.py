"""The tasks that come with fedsim; their base class is `fedsim.task.Task`."""

from fedsim.task import Task, judged

__all__ = ["Task", "judged"]
