"""qkv learn: the course, in which a student writes the parts of a Transformer."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.text import Text

from qkv.command_line.listing import listed
from qkv.command_line.output_checks import check_writable
from qkv.command_line.parsing import run_command, run_one_of
from qkv.command_line.usage_errors import UsageError
from qkv.learn.course import Exercise, course, find_exercise
from qkv.learn.student_folder import start_course
from qkv.learn.student_session import StudentSession
from qkv.storage import write_text
from qkv.text.printable import shortened

ExerciseName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="EXERCISE")]
CurrentExercise = Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[EXERCISE]")]
HERE = Path()
NOT_ALL = 1
"""Exit status if a check does not hold."""
COLOURS = {"green": "green", "open": "yellow"}


def start(folder: tyro.conf.Positional[Path], project: bool = False) -> None:
    """Write the course: one file for each exercise, with holes to fill in.

    Files that are there already are left as they are.

    Args:
        folder: A new folder, or one with the course.
        project: Write the project of the lectures instead: a repository for a GPT of your own.
    """
    if project:
        from qkv.learn.project import start_project

        for path in start_project(folder):
            print(path)

        return

    written, kept = start_course(folder)
    print(f"{folder}: {len(written)} files were written, {len(kept)} were there and are kept")
    first = next(iter(course().values()))
    print(f"Now: cd {folder}; qkv learn. Open {first.stem}.py in your editor and save it.")


def check(
    exercises: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[EXERCISE ...]")
    ] = (),
    json: bool = False,
    junit: Path | None = None,
    folder: Path = HERE,
) -> None:
    """Check exercises; the exit status is 1 unless all of them are green.

    Args:
        exercises: Names, numbers or files, such as lookup, 1 or ex01_lookup.py (default: all).
        json: Print the results as JSON.
        junit: Write them as JUnit XML to this file.
        folder: The folder of the course.
    """
    # A file in another folder names the folder, too
    if exercises and folder == HERE and Path(exercises[0]).parent != HERE:
        folder = Path(exercises[0]).parent

    if junit is not None:
        check_writable("junit", junit)

    chosen = [named_exercise(name) for name in exercises] or list(course().values())
    session = opened(folder)
    is_green = report_all(session, chosen, json, junit)
    if not is_green:
        sys.exit(NOT_ALL)


def hint(exercise: CurrentExercise = None, folder: Path = HERE) -> None:
    """Print the next of three hints for the first part that is not green.

    Args:
        exercise: The exercise (default: the first that is not green).
        folder: The folder of the course.
    """
    say(opened(folder), lambda session: session.hint(exercise or ""))


def show(exercise: ExerciseName, insist: bool = False, folder: Path = HERE) -> None:
    """Print the solution of an exercise that is green.

    Args:
        exercise: The exercise.
        insist: Print it although the exercise is not green.
        folder: The folder of the course.
    """
    print(StudentSession(folder).show(exercise, insist), end="")


def reset(exercise: ExerciseName, folder: Path = HERE) -> None:
    """Write the file of an exercise anew; your version is kept as a numbered copy.

    Args:
        exercise: The exercise.
        folder: The folder of the course.
    """
    say(opened(folder), lambda session: session.reset(exercise))


def list_exercises(folder: Path = HERE) -> None:
    """List the exercises with their minutes and slides, and how far you are.

    Args:
        folder: The folder of the course.
    """
    session = opened(folder)
    console = Console(highlight=False)
    for line in exercise_lines(session, console.width):
        console.print(line, no_wrap=True, crop=True)

    console.print(session.summary())
    print_notes(session)


def next_exercise(folder: Path = HERE) -> None:
    """Say which exercise comes next, and what it asks for.

    Args:
        folder: The folder of the course.
    """
    say(opened(folder), lambda session: session.next())


def quiz(
    topic: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[TOPIC]")] = None,
    questions: tuple[Path, ...] = (),
    page: Path | None = None,
    number: int | None = None,
    json: bool = False,
    check: bool = False,
    seed: int | None = None,
) -> None:
    """Test your knowledge: multiple choice, numbers, shapes, and code to predict.

    Args:
        topic: A topic, an exercise or a lecture (default: all).
        questions: Files with questions of your own.
        page: Write the questions as a page to this .html file.
        number: How many questions are asked (default: all).
        json: Print the result as JSON.
        check: Check the questions instead of asking: does their code contradict an answer?
        seed: Order of the questions.
    """
    from qkv.learn.quiz.ask import run as ask

    status = ask(topic, questions, page, number, json, check=check, seed=seed)
    if status:
        sys.exit(status)


def report(
    run: tyro.conf.Positional[Path], out: Path | None = None, text: Path | None = None
) -> None:
    """Write the report page of the project: curves, samples, views and scores of a run.

    Args:
        run: The folder of the run.
        out: The page, an .html file (default: report.html beside the folder of runs).
        text: Your text in Markdown (default: report.md beside the page).
    """
    from qkv.learn.project import write_report

    print(write_report(run, out, text))


def finish(folder: Path = HERE, steps: int = 200, out: Path | None = None) -> None:
    """Train your own GPT and the library's from the same seed, and write a page of both.

    Args:
        folder: The folder of the course.
        steps: Training steps.
        out: The page, an .html file.
    """
    from qkv.learn.own_gpt_page import RUNS, largest, loss_pairs
    from qkv.learn.own_gpt_page import finish as write_page

    print(f"Training your GPT and the library's, {steps} steps each ...", file=sys.stderr)
    page = write_page(folder, steps, out)
    worst = largest(loss_pairs(folder / RUNS / "mine", folder / RUNS / "library"))
    print(f"The losses differ by {worst.difference:.1e} at most, in step {worst.step}.")
    print(page)


def watch(folder: Path = HERE) -> None:
    """Check each file when it is saved; without a terminal, check all files once.

    Args:
        folder: The folder of the course.
    """
    session = opened(folder)
    console = Console(highlight=False)
    if console.is_terminal:
        from qkv.learn.watch_course import watch as watch_files

        watch_files(session, console)
    elif not report_all(session, list(course().values())):
        sys.exit(NOT_ALL)


# What the commands share


def named_exercise(name: str) -> Exercise:
    """The exercise that the command line names; a name that is none is wrong usage."""
    try:
        return find_exercise(name)
    except ValueError as error:
        raise UsageError(str(error)) from None


def exercise_lines(session: StudentSession, width: int) -> list[Text]:
    """A line for each exercise: number, name, minutes, state, the first slide, title."""
    rows = session.rows()
    longest_name = max(len(name) for _, name, *_ in rows)
    longest_state = max(len(state) for *_, state in rows)
    lines = []
    for number, name, title, minutes, slides, state in rows:
        first, *others = slides.split(", ")
        slide = f"{first} +{len(others)}" if others else first
        line = Text(f"{number:>2}  {name:<{longest_name}}  {minutes:>2} min  ")
        line.append(state.ljust(longest_state), COLOURS.get(state, "red"))
        line.append(f"  {slide:<11}  ")
        line.append(shortened(title, max(10, width - len(line))), "dim")
        lines.append(line)

    return lines


def opened(folder: Path) -> StudentSession:
    """The course of a folder."""
    session = StudentSession(folder)
    session.folder.check_exists()
    return session


def say(session: StudentSession, answer: Callable[[StudentSession], str]) -> None:
    """Print an answer, and what was noted meanwhile."""
    print(answer(session))
    print_notes(session)


def print_notes(session: StudentSession) -> None:
    for note in session.folder.notes:
        print(f"qkv: {note}", file=sys.stderr)


def report_all(
    session: StudentSession,
    exercises: list[Exercise],
    json: bool = False,
    junit: Path | None = None,
) -> bool:
    """Check exercises, print what was found, and return whether all are green."""
    from qkv.learn.check_screen import report_lines
    from qkv.learn.grader_files import as_json, as_junit
    from qkv.learn.watch_course import check_all

    reports = check_all(session, exercises)
    if junit is not None:
        write_text(junit, as_junit(reports))

    console = Console(highlight=False)
    if json:
        print(json_format.dumps(as_json(reports), indent=1))
    else:
        for exercise, found in zip(exercises, reports, strict=True):
            for line in report_lines(exercise, found, console.width):
                console.print(line, no_wrap=True, overflow="ellipsis", crop=True)

        if len(exercises) > 1:
            console.print(session.summary())

    print_notes(session)
    return all(found.state == "passed" for found in reports)


SUBCOMMANDS: dict[str, Callable[..., Any]] = {
    "start": start,
    "watch": watch,
    "check": check,
    "hint": hint,
    "show": show,
    "reset": reset,
    "list": list_exercises,
    "next": next_exercise,
    "quiz": quiz,
    "report": report,
    "finish": finish,
}


def show_overview() -> None:
    """Print what `qkv learn` alone does, and its subcommands."""
    print("usage: qkv learn [NAME ...]\n")
    print("Without a name: check each file of the course when it is saved.\n")
    for name, function in SUBCOMMANDS.items():
        print(listed(name, (function.__doc__ or "").partition("\n\n")[0]))

    print("\nqkv learn NAME --help explains each.")


def run(arguments: list[str]) -> Any:
    """Watch the course in this folder, or do what the first argument names."""
    if not arguments:
        return run_command(watch, [], "qkv learn")
    if arguments[0] in ("-h", "--help"):
        return show_overview()

    return run_one_of(SUBCOMMANDS, arguments, "qkv learn")
