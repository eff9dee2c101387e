"""Test your knowledge: questions with explained answers, in the terminal and on a page."""

from qkv.learn.quiz.quiz_files import QuizQuestion, questions

__all__ = ["QuizQuestion", "questions"]
