"""The built-in adversaries by what they recover; each attack is a file, or a folder of its name.

They are ordinary plugins, found through entry points. `from adversaries import LLG` works too: a
class is imported when it is first used.
"""

from fedsim.moved import plugin_classes, redirect

_HOMES, __getattr__ = plugin_classes(__name__)

# Modules of attacks lay directly in this package before they were sorted by what they recover.
redirect({f"{__name__}.{home.rpartition('.')[2]}": home for home in _HOMES.values()})

__all__ = sorted(_HOMES)
