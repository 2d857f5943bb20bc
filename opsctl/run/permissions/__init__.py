"""Whether a group can work with what is in its folders, and opening it to the group.

`rule` says what of a file's or folder's openness is missing (pure), `opening` looks at all of a folder and mends what
is the caller's own, `replacing` puts a copy in the place of another's file, `report` adds up whose it is and what they
have to type.
"""
