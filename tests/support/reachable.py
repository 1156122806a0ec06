"""What can be reached from an object."""

import gc
import types


def reachable(start):
    """Everything that can be reached from an object, but for modules, classes and globals."""
    skipped = (types.ModuleType, type, types.BuiltinFunctionType, types.FrameType)
    seen, queue = {}, [start]
    while queue:
        one = queue.pop()
        if id(one) in seen or isinstance(one, skipped):
            continue
        seen[id(one)] = one
        if isinstance(one, types.FunctionType):
            queue += [one.__closure__, one.__defaults__, one.__kwdefaults__, one.__dict__]
        else:
            queue += gc.get_referents(one)
    return list(seen.values())
