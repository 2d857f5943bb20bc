"""`make bench-gpu`: our CUDA kernels and whole trainings beside torch's, on one GPU."""
