// out[i] = i + the block's number of warps, by one block: whether kernels that were built here run on the GPU that is here.
// Writes 4 bytes for each thread. `opsctl kernels check` launches it.
#include "device.cuh"

extern "C" __global__ void smoke_f32(float* out) { out[threadIdx.x] = float(threadIdx.x) + block_sum(1.0f) / warp_size; }
EXPORT(smoke_f32)
