"""`grid run`: a program of the user's, in their terminal and folder, whose Ray work is inside a lease."""
