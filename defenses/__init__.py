"""The built-in defenses, one family a file.

They are ordinary plugins, found through entry points. `from defenses import GaussianNoise` works
too: a class is imported when it is first used.
"""

from fedsim.moved import plugin_classes

_HOMES, __getattr__ = plugin_classes(__name__)
__all__ = sorted(_HOMES)
