"""The project of the lectures: a repository to build a GPT in, and the report on its run."""

from qkv.learn.project.project_report import write_report
from qkv.learn.project.starter import start_project

__all__ = ["start_project", "write_report"]
