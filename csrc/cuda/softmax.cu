// Attention's softmax over keys: scale, mask, causality and ALiBi in one pass; forward and backward.
//
// forward   out_j = exp(s_j - max s) / sum exp(s - max s),  s_j = scale x_j + slope (j - last), hidden keys left out
// backward  of_x_j = scale p_j (gradient_j - sum p gradient)
// Rows are those of [b, n, q, k]. With `causal`, query i sees keys j <= last = i + k - q; otherwise last = k - 1. What
// a whole row has in common does not change its softmax: ALiBi counts from the last key that is seen, so that numbers
// of near keys are small and exact. A row of which nothing is seen, by its mask or as all its scores are -inf, gives
// zeros.
// Plain reference: trainer/kernels/softmax.py, `_by_torch`.
//
// Bytes, with e the size of an element and f the share of keys that causality leaves (1/2 where q = k): forward
// (f + 1) e b n q k, backward (2 f + 1) e b n q k; keys that causality hides are not read, their zeros are written.
// Floor: those bytes at the chip's copy rate; b 4, n 16, q = k = 2048 in 16 bits: 0.81 and 1.07 GB.
//
// A row of k keys is read by, and kept in
//   warp    a warp; registers                              to 1,024
//   block   64 to 512 threads; registers                   to 16,384
//   tiles   512 threads, which read it twice               to 32,768   the second time out of the L2 cache
// Rows may begin anywhere: a thread's vectors are 16-byte aligned places in memory, and elements at both ends are moved
// singly.
#include "rows.cuh"

namespace {

// What one row is, whatever the team. `seen`: keys from this one on are hidden by causality, and are not read.
struct Row {
    int64_t start;
    int sample, head, query, seen;
};

__device__ __forceinline__ Row row_at(int64_t row, int heads, int queries, int keys, int causal) {
    // 32 bits: a launch has fewer rows than that, and division in 64 is slow.
    const uint32_t matrix = uint32_t(row) / uint32_t(queries);
    Row found;
    found.start = row * keys;
    found.query = int(uint32_t(row) - matrix * uint32_t(queries));
    found.sample = int(matrix / uint32_t(heads));
    found.head = int(matrix - uint32_t(found.sample) * uint32_t(heads));
    const int before = found.query + keys - queries + 1;
    found.seen = causal ? (before < 0 ? 0 : before < keys ? before : keys) : keys;
    return found;
}

// The scores of one row, and how they come to be what the softmax is of. `whole`: every row begins at a multiple of 16
// bytes and has whole vectors, of which one that causality cuts is read all the same.
template <typename T, bool whole> struct Scores {
    const T* x;
    const bool* mask;  // of this row, or null
    int64_t mask_step;
    float scale, slope;
    int seen, phase;

    template <typename Team> __device__ __forceinline__ int first_of(int tile, int vector) const {
        return (tile + Team::thread() + vector * Team::threads()) * width<T> - (whole ? 0 : phase);
    }

    // values <- those of a tile that begins with vector `tile`, times `exponent_unit`; -inf where nothing is. The
    // greatest of them.
    template <typename Team> __device__ __forceinline__ float read(float (&values)[values_of_thread], int tile) const {
        Part<T> parts[vectors_of_thread<T>];
#pragma unroll
        for (int vector = 0; vector < vectors_of_thread<T>; ++vector) {
            parts[vector] = read_part<T, whole>(x, true, first_of<Team>(tile, vector), seen);
        }
        float greatest = -INFINITY;
#pragma unroll
        for (int vector = 0; vector < vectors_of_thread<T>; ++vector) {
            const int first = first_of<Team>(tile, vector);
            float* of_vector = values + vector * width<T>;
            if (first >= seen) {
#pragma unroll
                for (int at = 0; at < width<T>; ++at) of_vector[at] = -INFINITY;
                continue;
            }
            const float of_first = slope * float(first - seen + 1);
#pragma unroll
            for (int at = 0; at < width<T>; ++at) {
                of_vector[at] = fmaf(scale, parts[vector][at], fmaf(slope, float(at), of_first));
            }
            if (first < 0 || first + width<T> > seen || mask != nullptr) {
#pragma unroll
                for (int at = 0; at < width<T>; ++at) {
                    if (hidden(first + at)) of_vector[at] = -INFINITY;
                }
            }
#pragma unroll
            for (int at = 0; at < width<T>; ++at) greatest = fmaxf(greatest, of_vector[at]);
        }
        return greatest;
    }

    __device__ __forceinline__ bool hidden(int key) const {
        return key < 0 || key >= seen || (mask != nullptr && mask[key * mask_step]);
    }

    // values <- exp(values - shift), and their sum.
    template <typename Team>
    __device__ __forceinline__ float exponentials(float (&values)[values_of_thread], int tile, float shift) const {
        float sum = 0.0f;
#pragma unroll
        for (int vector = 0; vector < vectors_of_thread<T>; ++vector) {
            const bool any_seen = first_of<Team>(tile, vector) < seen;
#pragma unroll
            for (int at = 0; at < width<T>; ++at) {
                float& value = values[vector * width<T> + at];
                value = any_seen ? power<T>(value - shift) : 0.0f;
                sum += value;
            }
        }
        return sum;
    }

    template <typename Team>
    __device__ __forceinline__ void write(const float (&values)[values_of_thread], float by, T* out, int keys,
                                          int tile) const {
        const bool aligned = whole || elements_off(out) == phase;
#pragma unroll
        for (int vector = 0; vector < vectors_of_thread<T>; ++vector) {
            const int first = first_of<Team>(tile, vector);
            if (first >= keys) continue;
            float part[width<T>];
#pragma unroll
            for (int at = 0; at < width<T>; ++at) part[at] = values[vector * width<T> + at] * by;
            write_part<T, whole>(part, out, aligned, first, keys);
        }
    }
};

// exp(s - max s) where nothing is seen would be exp(-inf + inf).
__device__ __forceinline__ float shift_of(float greatest) { return greatest == -INFINITY ? 0.0f : greatest; }
__device__ __forceinline__ float inverse_of(float sum) { return sum == 0.0f ? 0.0f : 1.0f / sum; }

template <typename T, typename Team, bool whole>
__device__ __forceinline__ void forward_row(const Scores<T, whole>& scores, T* out, int keys) {
    float values[values_of_thread];
    const float shift = shift_of(Team::max(scores.template read<Team>(values, 0)));
    const float sum = Team::sum(scores.template exponentials<Team>(values, 0, shift));
    scores.template write<Team>(values, inverse_of(sum), out, keys, 0);
}

template <typename T, bool whole>
__device__ __forceinline__ void forward_row_in_tiles(const Scores<T, whole>& scores, T* out, int keys) {
    float values[values_of_thread];
    const int tile_vectors = vectors_of_thread<T> * BlockTeam::threads();
    const int vectors = (keys + scores.phase + width<T> - 1) / width<T>;
    float greatest = -INFINITY, sum = 0.0f;
    for (int tile = 0; tile < vectors; tile += tile_vectors) {
        const float before = shift_of(greatest);
        greatest = fmaxf(greatest, scores.template read<BlockTeam>(values, tile));
        const float shift = shift_of(greatest);
        sum = sum == 0.0f ? 0.0f : sum * power<T>(before - shift);
        sum += scores.template exponentials<BlockTeam>(values, tile, shift);
    }
    const float shift = shift_of(BlockTeam::max(greatest));
    sum = BlockTeam::sum(sum == 0.0f ? 0.0f : sum * power<T>(shift_of(greatest) - shift));
    const float inverse = inverse_of(sum);
    for (int tile = 0; tile < vectors; tile += tile_vectors) {
        scores.template read<BlockTeam>(values, tile);
        scores.template exponentials<BlockTeam>(values, tile, shift);
        scores.template write<BlockTeam>(values, inverse, out, keys, tile);
    }
}

template <typename T, typename Team, bool in_tiles, bool whole>
__device__ __forceinline__ void forward(T* out, const T* x, const bool* mask, int64_t mask_sample, int64_t mask_head,
                                        int64_t mask_query, int64_t mask_key, const float* slopes, float scale,
                                        int64_t rows, int heads, int queries, int keys, int causal) {
    const int64_t index = team_index<Team>();
    if (index >= rows) return;
    const Row row = row_at(index, heads, queries, keys, causal);
    Scores<T, whole> scores;
    scores.x = x + row.start;
    scores.mask = mask == nullptr
                      ? nullptr
                      : mask + row.sample * mask_sample + row.head * mask_head + row.query * mask_query;
    scores.mask_step = mask_key;
    scores.scale = scale * exponent_unit<T>;
    scores.slope = slopes == nullptr ? 0.0f : slopes[row.head] * exponent_unit<T>;
    scores.seen = row.seen;
    scores.phase = whole ? 0 : elements_off(scores.x);
    if constexpr (in_tiles) {
        forward_row_in_tiles<T, whole>(scores, out + row.start, keys);
    } else {
        forward_row<T, Team, whole>(scores, out + row.start, keys);
    }
}

// What products are added up in. The sum is subtracted from gradients of about its size: in fp32 its own rounding would
// be larger than that of the result.
template <typename T> struct TotalOf { using type = float; };
template <> struct TotalOf<float> { using type = double; };
template <typename T> using Total = typename TotalOf<T>::type;
__device__ __forceinline__ float fused(float a, float b, float sum) { return fmaf(a, b, sum); }
__device__ __forceinline__ double fused(float a, float b, double sum) { return fma(double(a), double(b), sum); }

// The gradient and the probabilities of one row.
template <typename T, bool whole> struct Gradients {
    const T *gradient, *probabilities;
    T* out;
    float scale;
    int seen, keys, phase;
    bool gradient_aligned, out_aligned;

    __device__ __forceinline__ Part<T> gradient_part(int first) const {
        return read_part<T, whole>(gradient, gradient_aligned, first, seen);
    }
    __device__ __forceinline__ Part<T> probability_part(int first) const {
        return read_part<T, whole>(probabilities, true, first, seen);
    }
    // What causality hides in a vector that it cuts counts as nothing, whatever is there.
    __device__ __forceinline__ void cut(Part<T>& of_gradient, Part<T>& of_probabilities, int first) const {
        if (!whole || first + width<T> <= seen) return;
        of_gradient.keep(seen - first);
        of_probabilities.keep(seen - first);
    }

    static __device__ __forceinline__ Total<T> product(const Part<T>& of_gradient, const Part<T>& of_probabilities) {
        Total<T> sum = 0;
#pragma unroll
        for (int at = 0; at < width<T>; ++at) sum = fused(of_gradient[at], of_probabilities[at], sum);
        return sum;
    }

    __device__ __forceinline__ void write(const Part<T>& of_gradient, const Part<T>& of_probabilities, Total<T> sum,
                                          int first) const {
        const float high = float(sum), low = sizeof(T) == 4 ? float(sum - high) : 0.0f;
        float part[width<T>];
#pragma unroll
        for (int at = 0; at < width<T>; ++at) {
            part[at] = scale * (of_probabilities[at] * ((of_gradient[at] - high) - low));
        }
        write_part<T, whole>(part, out, out_aligned, first, keys);
    }

    __device__ __forceinline__ void write_zeros(int first) const {
        const float zeros[width<T>] = {};
        write_part<T, whole>(zeros, out, out_aligned, first, keys);
    }
};

template <typename T, typename Team, bool whole>
__device__ __forceinline__ void backward_row(const Gradients<T, whole>& row) {
    Part<T> gradient[vectors_of_thread<T>], probabilities[vectors_of_thread<T>];
    Total<T> sum = 0;
#pragma unroll
    for (int vector = 0; vector < vectors_of_thread<T>; ++vector) {
        const int first = (Team::thread() + vector * Team::threads()) * width<T> - row.phase;
        gradient[vector] = row.gradient_part(first);
        probabilities[vector] = row.probability_part(first);
    }
#pragma unroll
    for (int vector = 0; vector < vectors_of_thread<T>; ++vector) {
        const int first = (Team::thread() + vector * Team::threads()) * width<T> - row.phase;
        if (first >= row.seen) continue;
        row.cut(gradient[vector], probabilities[vector], first);
        sum += row.product(gradient[vector], probabilities[vector]);
    }
    sum = Team::sum(sum);
#pragma unroll
    for (int vector = 0; vector < vectors_of_thread<T>; ++vector) {
        const int first = (Team::thread() + vector * Team::threads()) * width<T> - row.phase;
        if (first >= row.keys) continue;
        if (first < row.seen) {
            row.write(gradient[vector], probabilities[vector], sum, first);
        } else {
            row.write_zeros(first);
        }
    }
}

template <typename T, bool whole>
__device__ __forceinline__ void backward_row_in_tiles(const Gradients<T, whole>& row) {
    const int step = BlockTeam::threads() * width<T>;
    const int begin = BlockTeam::thread() * width<T> - row.phase;
    Total<T> sum = 0;
#pragma unroll 4
    for (int first = begin; first < row.seen; first += step) {
        Part<T> gradient = row.gradient_part(first), probabilities = row.probability_part(first);
        row.cut(gradient, probabilities, first);
        sum += row.product(gradient, probabilities);
    }
    sum = BlockTeam::sum(sum);
    for (int first = begin; first < row.keys; first += step) {
        if (first < row.seen) {
            Part<T> gradient = row.gradient_part(first), probabilities = row.probability_part(first);
            row.cut(gradient, probabilities, first);
            row.write(gradient, probabilities, sum, first);
        } else {
            row.write_zeros(first);
        }
    }
}

template <typename T, typename Team, bool in_tiles, bool whole>
__device__ __forceinline__ void backward(T* out, const T* gradient, const T* probabilities, float scale, int64_t rows,
                                         int queries, int keys, int causal) {
    const int64_t index = team_index<Team>();
    if (index >= rows) return;
    const Row at = row_at(index, 1, queries, keys, causal);
    Gradients<T, whole> row;
    row.gradient = gradient + at.start;
    row.probabilities = probabilities + at.start;
    row.out = out + at.start;
    row.scale = scale;
    row.seen = at.seen;
    row.keys = keys;
    row.phase = whole ? 0 : elements_off(row.probabilities);
    row.gradient_aligned = whole || elements_off(row.gradient) == row.phase;
    row.out_aligned = whole || elements_off(row.out) == row.phase;
    if constexpr (in_tiles) {
        backward_row_in_tiles<T, whole>(row);
    } else {
        backward_row<T, Team, whole>(row);
    }
}

// Whether rows of `keys` begin at multiples of 16 bytes at all of these addresses.
template <typename T, typename... Others>
__device__ __forceinline__ bool are_whole(int keys, const T* first, const Others*... others) {
    return keys % width<T> == 0 && elements_off(first) == 0 && ((elements_off(others) == 0) && ...);
}

}  // namespace

// Two blocks of 512 at once leave 64 registers a thread, which is enough without a spill on sm_90 alone.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int forward_blocks = 1;
#else
constexpr int forward_blocks = 2;
#endif

#define INSTANCE(form, suffix, T, Team, in_tiles, threads, blocks)                                                     \
    extern "C" __global__ void __launch_bounds__(threads, at_once<T>(blocks)) softmax_##form##_##suffix(                   \
        T* out, const T* scores, const bool* mask, int64_t mask_sample, int64_t mask_head, int64_t mask_query,         \
        int64_t mask_key, const float* slopes, float scale, int64_t rows, int heads, int queries, int keys,            \
        int causal) {                                                                                                  \
        if (are_whole(keys, out, scores)) {                                                                            \
            forward<T, Team, in_tiles, true>(out, scores, mask, mask_sample, mask_head, mask_query, mask_key, slopes,  \
                                             scale, rows, heads, queries, keys, causal);                               \
        } else {                                                                                                       \
            forward<T, Team, in_tiles, false>(out, scores, mask, mask_sample, mask_head, mask_query, mask_key, slopes, \
                                              scale, rows, heads, queries, keys, causal);                              \
        }                                                                                                              \
    }                                                                                                                  \
    EXPORT(softmax_##form##_##suffix)                                                                                  \
    extern "C" __global__ void __launch_bounds__(threads, 1) softmax_backward_##form##_##suffix(                       \
        T* out, const T* gradient, const T* probabilities, float scale, int64_t rows, int queries, int keys,           \
        int causal) {                                                                                                  \
        if (are_whole(keys, out, gradient, probabilities)) {                                                           \
            backward<T, Team, in_tiles, true>(out, gradient, probabilities, scale, rows, queries, keys, causal);       \
        } else {                                                                                                       \
            backward<T, Team, in_tiles, false>(out, gradient, probabilities, scale, rows, queries, keys, causal);      \
        }                                                                                                              \
    }                                                                                                                  \
    EXPORT(softmax_backward_##form##_##suffix)

#define INSTANCES(suffix, T)                                                                                           \
    INSTANCE(warp, suffix, T, WarpTeam, false, 128, 7)                                                                 \
    INSTANCE(block, suffix, T, BlockTeam, false, 512, forward_blocks)                                                  \
    INSTANCE(tiles, suffix, T, BlockTeam, true, 512, 1)

INSTANCES(f32, float)
INSTANCES(f16, Half)
INSTANCES(bf16, BFloat16)
