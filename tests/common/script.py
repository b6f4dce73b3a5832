"""A script without a suffix, as a module, for tests of what is in it."""
import importlib.machinery
import importlib.util
import sys


def load(path):
    """Modules beside the script are found as when it runs; nothing is written there."""
    sys.dont_write_bytecode = True
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    loader = importlib.machinery.SourceFileLoader(path.name.replace("-", "_"), str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module
