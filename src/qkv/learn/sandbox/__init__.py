"""Student's code in a child process: bounded in time, memory and output, unable to harm."""
