"""Who uses what of a folder, how fast it grows, what is about to be purged, and keeping that from it.

`counting` adds up while a walk goes on, `using` lets it go on from call to call and tells growth, `purging` lists what
goes when, `touching` makes files look used.
"""
