"""The front end in a process of its own: HTTP, templates and text there, models in the engine's."""
