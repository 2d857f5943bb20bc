"""Whether a group can work with what is in its folders, and opening them to the group.

`rule` decides what of a file's or folder's openness is missing (pure), `apply` checks all of a folder and fixes what is
the caller's own, `report` sums it up by owner, with the command that each must run.
"""
