"""Nothing: what is left is what starting and ending a program costs."""
