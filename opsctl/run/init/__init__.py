"""Make the run file of a new run: from a launch script of Megatron-DeepSpeed's kind, or from a few answers. Pure.

`shell_syntax` splits a script into words, `shell_values` has its variables, and `shell_script` reads its commands.
`launch_script` finds the training and fills a `draft`. A value that the script does not decide keeps a `$`, is not
taken, and is listed with its line.
"""
