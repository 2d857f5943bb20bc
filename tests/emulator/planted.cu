// Kernels with one bug each, which the emulator has to find.
#include "device.cuh"

// A trailing barrier is missing: a warp that runs ahead overwrites what another has not read yet.
extern "C" __global__ void no_trailing_barrier(float* out, const float* in, int rows) {
    SHARED(float, held, 128);
    for (int row = 0; row < rows; ++row) {
        held[threadIdx.x] = in[row * int(blockDim.x) + int(threadIdx.x)];
        __syncthreads();
        out[row * int(blockDim.x) + int(threadIdx.x)] = held[(threadIdx.x + 32) % blockDim.x];
    }
}
EXPORT(no_trailing_barrier)

// The barrier between writing and reading is missing.
extern "C" __global__ void no_barrier(float* out, const float* in) {
    SHARED(float, held, 128);
    held[threadIdx.x] = in[threadIdx.x];
    out[threadIdx.x] = held[blockDim.x - 1 - threadIdx.x];
}
EXPORT(no_barrier)

// Lanes read what others of their warp wrote, without __syncwarp.
extern "C" __global__ void no_syncwarp(float* out, const float* in) {
    SHARED(float, held, 32);
    held[threadIdx.x] = in[threadIdx.x];
    out[threadIdx.x] = held[31 - threadIdx.x];
}
EXPORT(no_syncwarp)
extern "C" __global__ void with_syncwarp(float* out, const float* in) {
    SHARED(float, held, 32);
    held[threadIdx.x] = in[threadIdx.x];
    __syncwarp();
    out[threadIdx.x] = held[31 - threadIdx.x];
}
EXPORT(with_syncwarp)

extern "C" __global__ void barrier_of_some(float* out) {
    if (threadIdx.x < 40) __syncthreads();
    out[threadIdx.x] = 0.0f;
}
EXPORT(barrier_of_some)

extern "C" __global__ void barriers_in_two_places(float* out) {
    if (threadIdx.x < 32) {
        __syncthreads();
        out[0] = 1.0f;
    } else {
        __syncthreads();
        out[1] = 1.0f;
    }
}
EXPORT(barriers_in_two_places)

extern "C" __global__ void lane_not_in_its_mask(float* out) {
    out[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, 1.0f, 1);
}
EXPORT(lane_not_in_its_mask)

extern "C" __global__ void masks_that_differ(float* out) {
    const unsigned mask = threadIdx.x < 16 ? 0xffffffffu : 0xfffffffeu;
    out[threadIdx.x] = __shfl_sync(mask, 1.0f, 3);
}
EXPORT(masks_that_differ)

extern "C" __global__ void source_outside_the_mask(float* out) {
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0x0000ffffu, 1.0f, 20);
}
EXPORT(source_outside_the_mask)

extern "C" __global__ void lane_that_has_left(float* out) {
    if (threadIdx.x == 7) return;
    out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
}
EXPORT(lane_that_has_left)

extern "C" __global__ void shuffle_against_vote(float* out) {
    out[threadIdx.x] = threadIdx.x < 8 ? __shfl_sync(0xffffffffu, 1.0f, 0) : float(__ballot_sync(0xffffffffu, 1));
}
EXPORT(shuffle_against_vote)

extern "C" __global__ void misaligned_vector(float* out, const float* in) { Vec<float, 4>::load(in + 1).store(out); }
EXPORT(misaligned_vector)

// out stays what it was where shared memory was not written: the poison shows.
extern "C" __global__ void reads_unwritten_shared(float* out) {
    SHARED(float, held, 32);
    DYNAMIC_SHARED(float, asked);
    out[0] = held[threadIdx.x];
    out[1] = asked[threadIdx.x];
}
EXPORT(reads_unwritten_shared)

extern "C" __global__ void overruns_static_shared(float* out, int at) {
    SHARED(float, held, 32);
    held[at] = 1.0f;
    out[0] = held[at];
}
EXPORT(overruns_static_shared)
extern "C" __global__ void overruns_dynamic_shared(float* out, int at) {
    DYNAMIC_SHARED(float, held);
    held[at] = 1.0f;
    out[0] = held[at];
}
EXPORT(overruns_dynamic_shared)
extern "C" __global__ void overruns_global(float* out, int at) { out[at] = 1.0f; }
EXPORT(overruns_global)

// No barrier orders two blocks.
extern "C" __global__ void blocks_that_write_the_same(float* out) { out[threadIdx.x] = float(blockIdx.x); }
EXPORT(blocks_that_write_the_same)
