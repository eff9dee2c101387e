"""The course: a student writes each part, and checks tell at every step whether it is right."""
