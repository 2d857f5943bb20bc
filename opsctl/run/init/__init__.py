"""Make the run file of a new run: from a launch script of Megatron-DeepSpeed's kind, or from a few answers. Pure.

A script goes through `shell_syntax` (words and commands with their lines), `shell_values` (variables, arithmetic,
tests) and `shell_script` (its commands, followed and never run) to `launch_script`, which finds the training and fills
a `draft`. A value that the script alone does not decide keeps a `$`, is not taken, and is listed with its line.
"""
