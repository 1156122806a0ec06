"""The tasks that come with fedsim; their base class is `fedsim.task.Task`."""

from fedsim.task import Task, evaluating

__all__ = ["Task", "evaluating"]
