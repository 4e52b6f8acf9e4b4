"""`grid run`: runs a program in the user's terminal and folder, with its Ray work inside a lease."""
