"""The project of the lectures: a repository to build a GPT in, and the report on its run."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qkv.learn.project.project_report import write_report
    from qkv.learn.project.starter import start_project
else:
    from qkv.imports import attach

    attach(__name__)

__all__ = ["start_project", "write_report"]
