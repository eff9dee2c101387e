"""Attention kernels. Every module here is imported, and registers its kernel in the table."""

from importlib import import_module
from pkgutil import iter_modules

for module in iter_modules(__path__):
    import_module(f"{__name__}.{module.name}")
