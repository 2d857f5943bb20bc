"""The pages, and the code that fills in those that are made from the program."""
