// LayerNorm and RMSNorm over rows of h elements, with a residual added first or not; normalization_backward.cu has the
// gradients.
//
//   t = x + residual, rounded to their type
//   y = (t - mean) d weight + bias,  d = 1 / sqrt(mean((t - mean)^2) + epsilon)
// RMSNorm is the same with a mean of 0; a null pointer for the means says so. Means and d are fp32. The variance is
// that of differences, never mean(t^2) - mean(t)^2: of registers, and over tiles by Chan's formula.
// Plain reference: trainer/kernels/normalization.py, `_by_torch`.
//
// Bytes, with e the size of an element: 2 e r h, with a residual 4 e r h.
// Floor: those bytes at the chip's copy rate; r 8192, h 4096 in 16 bits: 0.13 GB.
//
// A row of h is read by, and kept in
//   warp    a warp; registers                to 1,024
//   block   up to 512 threads; registers     to 16,384
//   tiles   512 threads, which read it twice to 32,768  second time out of the L2 cache
#include "rows.cuh"

namespace {

template <typename T, bool whole> struct ForwardRow {
    const T *x, *residual;  // residual: null, or x is added to it and written to `total`
    T *total, *y;
    const T *weight, *bias;  // bias: null for none
    int hidden;
    bool aligned, weights_aligned;

    template <typename Team> static __device__ __forceinline__ int first_of(int tile, int vector) {
        return (tile + Team::thread() + vector * Team::threads()) * width<T>;
    }

    // parts <- those of a tile that begins with vector `tile`, 0 beyond the row; `total` is written if it is to be.
    template <typename Team>
    __device__ __forceinline__ void read(Part<T> (&parts)[vectors_of_thread<T>], int tile) const {
#pragma unroll
        for (int vector = 0; vector < vectors_of_thread<T>; ++vector) {
            parts[vector] = read_part<T, whole>(x, aligned, first_of<Team>(tile, vector), hidden);
        }
        if (residual == nullptr) return;
        Part<T> others[vectors_of_thread<T>];
#pragma unroll
        for (int vector = 0; vector < vectors_of_thread<T>; ++vector) {
            others[vector] = read_part<T, whole>(residual, aligned, first_of<Team>(tile, vector), hidden);
        }
#pragma unroll
        for (int vector = 0; vector < vectors_of_thread<T>; ++vector) {
            const int first = first_of<Team>(tile, vector);
            float sums[width<T>];
#pragma unroll
            for (int at = 0; at < width<T>; ++at) sums[at] = parts[vector][at] + others[vector][at];
            parts[vector] = Part<T>::of(sums);
            if (first < hidden) write_part<T, whole>(sums, total, aligned, first, hidden);
        }
    }

    template <typename Team>
    __device__ __forceinline__ void write(const Part<T> (&parts)[vectors_of_thread<T>], int tile, float mean,
                                          float deviation) const {
        // Of one vector at a time: they come from a cache, and registers for all of them would cost rows under way.
#pragma unroll
        for (int vector = 0; vector < vectors_of_thread<T>; ++vector) {
            const int first = first_of<Team>(tile, vector);
            if (first >= hidden) continue;
            const Part<T> weights = read_part<T, whole>(weight, weights_aligned, first, hidden);
            const Part<T> biases = read_part<T, whole>(bias, weights_aligned, first, bias == nullptr ? 0 : hidden);
            float of_part[width<T>];
#pragma unroll
            for (int at = 0; at < width<T>; ++at) {
                of_part[at] = fmaf((parts[vector][at] - mean) * deviation, weights[at], biases[at]);
            }
            write_part<T, whole>(of_part, y, aligned, first, hidden);
        }
    }
};

template <typename T> __device__ __forceinline__ float sum_of(const Part<T> (&parts)[vectors_of_thread<T>]) {
    float sum = 0.0f;
#pragma unroll
    for (int vector = 0; vector < vectors_of_thread<T>; ++vector) {
#pragma unroll
        for (int at = 0; at < width<T>; ++at) sum += parts[vector][at];
    }
    return sum;
}

// The sum of (value - mean)^2 over a thread's values of a tile.
template <typename T, typename Team, bool whole>
__device__ __forceinline__ float squares_of(const Part<T> (&parts)[vectors_of_thread<T>], float mean, int tile,
                                            int hidden) {
    float sum = 0.0f;
#pragma unroll
    for (int vector = 0; vector < vectors_of_thread<T>; ++vector) {
        const int first = ForwardRow<T, whole>::template first_of<Team>(tile, vector);
        if (first >= hidden) continue;
#pragma unroll
        for (int at = 0; at < width<T>; ++at) {
            const float difference = whole || first + at < hidden ? parts[vector][at] - mean : 0.0f;
            sum = fmaf(difference, difference, sum);
        }
    }
    return sum;
}

struct Moments {
    float mean, squares;  // squares: the sum of squared differences from the mean
};

template <typename T, typename Team, bool whole>
__device__ __forceinline__ Moments moments_of(const Part<T> (&parts)[vectors_of_thread<T>], int tile, int hidden,
                                              bool has_mean) {
    const int count = min(hidden - tile * width<T>, Team::threads() * values_of_thread);
    Moments moments;
    moments.mean = has_mean ? Team::sum(sum_of<T>(parts)) / float(count) : 0.0f;
    moments.squares = Team::sum(squares_of<T, Team, whole>(parts, moments.mean, tile, hidden));
    return moments;
}

// Chan, Golub and LeVeque: of two sets of numbers, those of both together.
__device__ __forceinline__ Moments joined(Moments a, float count_a, Moments b, float count_b) {
    const float difference = b.mean - a.mean, share = count_b / (count_a + count_b);
    Moments both;
    both.mean = fmaf(difference, share, a.mean);
    both.squares = a.squares + b.squares + difference * difference * (count_a * share);
    return both;
}

template <typename T, typename Team, bool whole>
__device__ __forceinline__ Moments normalize(const ForwardRow<T, whole>& row, float epsilon, bool has_mean,
                                             float* deviation) {
    Part<T> parts[vectors_of_thread<T>];
    row.template read<Team>(parts, 0);
    const Moments moments = moments_of<T, Team, whole>(parts, 0, row.hidden, has_mean);
    *deviation = 1.0f / sqrtf(moments.squares / float(row.hidden) + epsilon);
    row.template write<Team>(parts, 0, moments.mean, *deviation);
    return moments;
}

template <typename T, bool whole>
__device__ __forceinline__ Moments normalize_in_tiles(ForwardRow<T, whole> row, float epsilon, bool has_mean,
                                                      float* deviation) {
    Part<T> parts[vectors_of_thread<T>];
    const int tile_vectors = vectors_of_thread<T> * BlockTeam::threads();
    const int vectors = (row.hidden + width<T> - 1) / width<T>;
    Moments moments = {0.0f, 0.0f};
    for (int tile = 0; tile < vectors; tile += tile_vectors) {
        row.template read<BlockTeam>(parts, tile);
        const Moments of_tile = moments_of<T, BlockTeam, whole>(parts, tile, row.hidden, has_mean);
        const int before = tile * width<T>, count = min(row.hidden - before, tile_vectors * width<T>);
        moments = tile == 0 ? of_tile : joined(moments, float(before), of_tile, float(count));
    }
    *deviation = 1.0f / sqrtf(moments.squares / float(row.hidden) + epsilon);
    if (row.residual != nullptr) {  // their sum is there already, each thread's own
        row.x = row.total;
        row.residual = nullptr;
    }
    for (int tile = 0; tile < vectors; tile += tile_vectors) {
        row.template read<BlockTeam>(parts, tile);
        row.template write<BlockTeam>(parts, tile, moments.mean, *deviation);
    }
    return moments;
}

template <typename T, typename Team, bool in_tiles, bool whole>
__device__ __forceinline__ void forward(T* y, T* total, float* means, float* deviations, const T* x, const T* residual,
                                        const T* weight, const T* bias, float epsilon, int64_t rows, int hidden,
                                        int aligned, int weights_aligned) {
    const int64_t index = team_index<Team>();
    if (index >= rows) return;
    const int64_t start = index * hidden;
    ForwardRow<T, whole> row;
    row.x = x + start;
    row.residual = residual == nullptr ? nullptr : residual + start;
    row.total = total + start;
    row.y = y + start;
    row.weight = weight;
    row.bias = bias;
    row.hidden = hidden;
    row.aligned = aligned != 0;
    row.weights_aligned = weights_aligned != 0;
    float deviation;
    Moments moments;
    if constexpr (in_tiles) {
        moments = normalize_in_tiles<T, whole>(row, epsilon, means != nullptr, &deviation);
    } else {
        moments = normalize<T, Team, whole>(row, epsilon, means != nullptr, &deviation);
    }
    if (Team::thread() == 0) {
        if (means != nullptr) means[index] = moments.mean;
        deviations[index] = deviation;
    }
}

}  // namespace

#define FORWARD(form, suffix, T, Team, in_tiles, threads, blocks)                                                      \
    extern "C" __global__ void __launch_bounds__(threads, at_once<T>(blocks)) norm_##form##_##suffix(                  \
        T* y, T* total, float* means, float* deviations, const T* x, const T* residual, const T* weight,               \
        const T* bias, float epsilon, int64_t rows, int hidden, int aligned, int weights_aligned) {                    \
        if (aligned && weights_aligned) {                                                                              \
            forward<T, Team, in_tiles, true>(y, total, means, deviations, x, residual, weight, bias, epsilon, rows,    \
                                             hidden, 1, 1);                                                            \
        } else {                                                                                                       \
            forward<T, Team, in_tiles, false>(y, total, means, deviations, x, residual, weight, bias, epsilon, rows,   \
                                              hidden, aligned, weights_aligned);                                       \
        }                                                                                                              \
    }                                                                                                                  \
    EXPORT(norm_##form##_##suffix)

#define INSTANCES(suffix, T)                                                                                           \
    FORWARD(warp, suffix, T, WarpTeam, false, 128, 8)                                                                  \
    FORWARD(block, suffix, T, BlockTeam, false, 512, 2)                                                                \
    FORWARD(tiles, suffix, T, BlockTeam, true, 512, 1)

INSTANCES(f32, float)
INSTANCES(f16, Half)
INSTANCES(bf16, BFloat16)
