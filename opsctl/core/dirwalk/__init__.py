"""Walking through folders of any size: in parallel, within a budget, and on from where it stopped.

`stretch` goes through folders in one process, by descriptor and through no link; `parallel` has several processes do
so and is never longer about it than its budget, whatever hangs; `state` is what is still to be done, small enough for a
record; `mounts` says where the kernel has mounted what, `file_system` whether that answers
and how full it is.
"""
