"""What a person types, one command a file. Each is imported when it is asked for, so that the
others start at once.
"""
