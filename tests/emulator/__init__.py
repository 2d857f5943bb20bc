"""The CUDA kernels on the CPU: the emulator in C++, its runner, and replays under sanitizers."""
