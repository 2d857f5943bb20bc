"""Compute sizes, memory, schedule, days and layouts of a training. Pure.

`from_run` and `from_inputs` choose the sections; `sizes`, `schedule` and `costs` make them, each with its JSON values
(structs of `plan`) and its rows on the screen (`section`). `search` compares layouts.
"""
