"""Check if a group can use everything in its folders, and open them to the group.

`rule` decides which access is missing on a file or folder (pure), `apply` checks all of a folder and fixes the caller's
own entries, `report` groups the results by owner, with the command that each must run.
"""
