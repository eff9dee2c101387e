"""The version, known without the package's metadata, which a source folder does not have. No
imports.
"""

__version__ = "0.7.0"
