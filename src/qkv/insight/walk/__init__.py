"""One attention head number by number, as it is and under edits."""
