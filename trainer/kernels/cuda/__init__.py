"""Families of operations by our CUDA kernels: launches, made from shapes, dtypes and the device's facts."""
